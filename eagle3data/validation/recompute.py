"""`--recompute N`: the target itself, run again on N samples, against what the set holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.layers import NormState
from eagle3data.schema.manifest import Manifest, StorageDtype
from eagle3data.schema.sample import Sample, as_float32
from eagle3data.validation.compared_layer import ComparedLayer
from eagle3data.validation.findings import Finding
from eagle3data.validation.recompute_notes import recompute_notes
from eagle3data.validation.recompute_verdicts import RecomputeVerdicts
from eagle3data.validation.recomputed import Recomputed, Recomputing, RecomputingTarget
from eagle3data.validation.row_causes import find_causes
from eagle3data.validation.row_errors import RowErrors

_MOST_BYTES = 4 << 30
"""Room for one sample's states at every layer; of a longer one fewer layers are kept."""
_BYTES_OF_A_NUMBER = 4


@dataclass(kw_only=True)
class Recomputation:
    """What recomputing found.

    Attributes:
        findings: what is wrong.
        undecided: questions that stayed open.
        confidence: sentences: what was compared, and what would have been caught.
        samples, tokens: recomputed.
        bytes_read: of the set's states.
    """

    findings: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    confidence: list[str] = field(default_factory=list)
    samples: int = 0
    tokens: int = 0
    bytes_read: int = 0


def check_recomputed(
    dataset: Dataset,
    model: str,
    revision: str | None,
    recompute: Recomputing,
    advance: Callable[[int], None],
    *,
    trust_remote_code: bool = False,
) -> Recomputation:
    """Run the target on some samples and compare every captured layer, row by row.

    One sample's states are held at a time.

    Args:
        dataset: opened.
        model: folder or hub id of the target.
        revision: hub revision.
        recompute: how many samples, and the way to the target.
        advance: called with the number of samples done since the last call.
        trust_remote_code: let the model's own code run.

    Raises:
        InputError: the target can't be loaded.
    """
    target = recompute.load(model, revision, dataset.manifest, trust_remote_code=trust_remote_code)
    found = Recomputation()
    samples: list[Sample] = []
    compared: list[ComparedLayer] = []
    for sample in _readable(dataset, recompute.samples, found):
        layers = _compare(dataset, sample, len(samples), target)
        if layers is None:
            found.undecided.append(
                f"Recomputing: the target's own states of sample {sample.sample_id} are not "
                f"finite in {target.compute_dtype}."
            )
            continue
        compared += layers
        found.bytes_read += sum(states.nbytes for states in sample.hidden_states.values())
        sample.hidden_states = {}
        samples.append(sample)
        advance(1)
    found.samples, found.tokens = len(samples), sum(len(sample) for sample in samples)
    if not samples:
        found.undecided.append("Recomputing: no sample could be compared.")
        return found
    verdicts = RecomputeVerdicts(dataset, samples, compared)
    found.findings += verdicts.findings
    found.undecided += verdicts.undecided
    found.confidence += recompute_notes(verdicts, target, len(dataset))
    return found


def choose(lengths: npt.NDArray[np.int64], wanted: int) -> list[int]:
    """All samples in the order in which they are to be recomputed: `wanted` of them, then others.

    First the longest, since faults that begin inside a sample need room; then those that hold the
    middles of equal stretches of the token axis, so that a long sample is met more often.

    Args:
        lengths: `[n]` tokens of each sample.
        wanted: how many are going to be recomputed; the rest stand in for unreadable ones.
    """
    ends = np.cumsum(lengths)
    middles = (2 * np.arange(wanted - 1) + 1) * ends[-1] // max(2 * (wanted - 1), 1)
    order = [int(lengths.argmax()), *np.searchsorted(ends, middles, "right").tolist()]
    longest_first = np.argsort(-lengths, kind="stable").tolist()
    return list(dict.fromkeys([*order, *longest_first]))


def _readable(dataset: Dataset, wanted: int, found: Recomputation) -> Iterator[Sample]:
    """Samples to recompute; what can't be read becomes a finding, and another takes its place."""
    read = 0
    for position in choose(dataset.index["length"].to_numpy().astype(np.int64), wanted):
        if read == wanted:
            return
        try:
            sample = dataset[position]
        except CorruptionError as error:
            offset = int(dataset.index["token_offset"].to_numpy()[position])
            found.findings.append(
                Finding(
                    kind=error.kind,
                    detail=str(error),
                    sample_id=str(dataset.index["sample_id"][position].as_py()),
                    shard=dataset.manifest.storage.axis.shard_of(offset),
                    layer=_layer_of(error),
                )
            )
            continue
        read += 1
        yield sample


def _layer_of(error: CorruptionError) -> int | None:
    name = str(error.array or "").rsplit("/", 1)[-1]
    return int(name) if name.isdigit() else None


def _compare(
    dataset: Dataset, sample: Sample, number: int, target: RecomputingTarget
) -> list[ComparedLayer] | None:
    """Every captured layer of a sample; None where the target's own states are not finite."""
    import torch

    manifest = dataset.manifest
    run = target.run(
        sample.input_ids.tolist(), _layers_to_know(manifest, len(sample)), manifest.layers
    )
    _require_same_shape(run, target.final_layer, sample, manifest.final_layer)
    found = []
    for layer, states in sample.hidden_states.items():
        right, twin = run.states[layer], run.twins[layer]
        if layer == manifest.final_layer and manifest.capture.norm_state is NormState.POST:
            right, twin = target.norm(right), target.norm(twin)
        rows = RowErrors(
            stored=torch.from_numpy(as_float32(states)),
            right=right.float(),
            twin=twin.float(),
            dtype=StorageDtype(manifest.storage.dtype),
        )
        if not bool(torch.isfinite(rows.right).all()):
            return None
        causes = find_causes(rows, layer, run, target.norm, manifest)
        found.append(ComparedLayer.of(number, layer, rows, causes))
    return found


def _layers_to_know(manifest: Manifest, length: int) -> list[int]:
    """Layers that a sample's states may be another's of: all, or what there is room for."""
    every = range(manifest.final_layer + 1)
    if len(every) * length * manifest.hidden_size * _BYTES_OF_A_NUMBER <= _MOST_BYTES:
        return list(every)
    near = {layer + step for layer in manifest.layers for step in (-1, 0, 1)}
    return [layer for layer in every if layer in near]


def _require_same_shape(run: Recomputed, layers: int, sample: Sample, final: int) -> None:
    layer, states = next(iter(sample.hidden_states.items()))
    if layers != final or run.states[layer].shape != states.shape:
        raise InputError(
            f"--recompute: the model has {layers} layers and gives {list(run.states[layer].shape)} "
            f"for sample {sample.sample_id}, the set holds {final} and {list(states.shape)}. Give "
            "the set's own target as --model."
        )
