"""Magnitudes of stored states against what the index says of them."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.statistics import LayerStatistics


def stated_statistics(dataset: Dataset, position: int, layer: int) -> LayerStatistics | None:
    """What the index says of the layer; None where its lists are not one value a layer."""
    layers = dataset.manifest.layers
    values = {}
    for name in LayerStatistics.__dataclass_fields__:
        row = dataset.index[name][position].as_py()
        if len(row) != len(layers):
            return None
        values[name] = row[layers.index(layer)]
    return LayerStatistics(**values)


def magnitude_faults(
    found: LayerStatistics, stated: LayerStatistics | None, rows: int
) -> Iterator[tuple[str, str]]:
    """Kind and sentence of each fault that magnitudes show.

    Args:
        found: of the stored bytes.
        stated: what the index says; None where it says nothing that can be used.
        rows: of the sample.
    """
    if found.n_nan:
        yield "nonfinite", f"{found.n_nan} NaN values are stored."
    if found.n_inf:
        yield "saturated", f"{found.n_inf} infinite values are stored."
    if found.n_zero_rows:
        yield "all_zero", f"{found.n_zero_rows} of {rows} rows are all zero; a real state never is."
    if found.n_nan or found.n_inf or found.n_zero_rows or stated is None:
        return
    difference = found.difference(stated)
    if difference is not None:
        yield "object_changed", difference
