"""eagle3data: the data layer of EAGLE-3 training.

The names below are the public interface; everything heavy is imported when first used, so
that `import eagle3data` needs neither torch nor a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3data.extractor.recompute import Recompute
    from eagle3data.readers.batch import Batch
    from eagle3data.readers.dataset import Dataset, open_dataset
    from eagle3data.readers.loader import StreamingLoader
    from eagle3data.schema.errors import (
        AlreadyExistsError,
        CorruptionError,
        Eagle3DataError,
        InputError,
        LayerError,
        ManifestError,
        MismatchError,
        SampleError,
        SpaceError,
    )
    from eagle3data.schema.manifest import Manifest
    from eagle3data.schema.sample import Sample
    from eagle3data.validation.validate import validate
    from eagle3data.writers.dataset_writer import DatasetWriter

_HOMES = {
    "eagle3data.extractor.recompute": ["Recompute"],
    "eagle3data.readers.batch": ["Batch"],
    "eagle3data.readers.dataset": ["Dataset", "open_dataset"],
    "eagle3data.readers.loader": ["StreamingLoader"],
    "eagle3data.schema.errors": [
        "AlreadyExistsError",
        "CorruptionError",
        "Eagle3DataError",
        "InputError",
        "LayerError",
        "ManifestError",
        "MismatchError",
        "SampleError",
        "SpaceError",
    ],
    "eagle3data.schema.manifest": ["Manifest"],
    "eagle3data.schema.sample": ["Sample"],
    "eagle3data.validation.validate": ["validate"],
    "eagle3data.writers.dataset_writer": ["DatasetWriter"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AlreadyExistsError",
    "Batch",
    "CorruptionError",
    "Dataset",
    "DatasetWriter",
    "Eagle3DataError",
    "InputError",
    "LayerError",
    "Manifest",
    "ManifestError",
    "MismatchError",
    "Recompute",
    "Sample",
    "SampleError",
    "SpaceError",
    "StreamingLoader",
    "open_dataset",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'eagle3data' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
