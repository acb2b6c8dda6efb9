"""Level `semantic`: do the states mean what their tokens say, as far as a sample of them shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from eagle3data.readers.dataset import Dataset
from eagle3data.storage.model_weights import TargetHead, UnknownHeadError, load_head
from eagle3data.validation import layer_profile, next_token
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.head_checks import HeadChecks
from eagle3data.validation.index_findings import index_findings
from eagle3data.validation.layer_views import LayerView, doubt_findings, look
from eagle3data.validation.measured import ByShift, LayerMeasured, Measured
from eagle3data.validation.probe_set import ProbeSet
from eagle3data.validation.row_checks import NAMING, RowChecks
from eagle3data.validation.significance import caught_share, log_threshold
from eagle3data.validation.token_identity import WIDE_SHIFTS, Sequences, frequent_tokens
from eagle3data.validation.witness_checks import WitnessChecks

MIN_CLASSES = 2
UNRELATED_ROWS = 1000
"""Rows to test before "no better than a stranger's" means more than "too few"."""


@dataclass(kw_only=True)
class Meaning:
    """What the semantic checks found."""

    findings: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    confidence: list[str] = field(default_factory=list)
    measured: Measured = field(default_factory=Measured)
    samples: int = 0
    tokens: int = 0
    bytes_read: int = 0


def check_meaning(
    dataset: Dataset, model: str | None, revision: str | None, advance: Callable[[int], None]
) -> Meaning:
    """Probe a data set.

    Args:
        dataset: opened.
        model: folder or hub id of the target, for the checks through its head.
        revision: hub revision.
        advance: called with the number of layers done since the last call.

    Raises:
        InputError: no such model, or weights that can't be read.
    """
    found = Meaning()
    head = _head(model, revision, found)
    probe = ProbeSet(dataset)
    found.findings += probe.unreadable
    sequences = Sequences.of([probe.ids(position) for position in probe.positions])
    found.samples, found.tokens = len(probe), probe.tokens
    classes = frequent_tokens(sequences) if len(probe) > 1 else None
    if classes is None or len(classes) < MIN_CLASSES:
        found.undecided.append(
            f"Token identity: {found.samples:,} readable samples with {found.tokens:,} tokens hold "
            "too few repeated tokens to compare."
        )
        _without_identity(found, probe, sequences, head)
        advance(len(dataset.manifest.layers))
        return found
    layers = dataset.manifest.layers
    log_alpha = log_threshold(len(probe) * len(layers) * len(WIDE_SHIFTS))
    picked = next_token.choose_rows(sequences)
    checks = RowChecks(probe, sequences, log_alpha)
    views = []
    for layer in layers:
        views.append(look(probe, sequences, classes, layer, picked, log_alpha, checks))
        advance(1)
    checks.look_across({view.layer: view.picked for view in views})
    _weightless_findings(found, probe, views)
    readings: dict[int, next_token.NextToken] = {}
    if head is not None:
        named = [each for each in checks.findings(found.findings) if each.kind in NAMING]
        explained = {each.sample_id for each in [*found.findings, *named] if each.sample_id}
        through_head = HeadChecks(probe, sequences, views, picked, head, log_alpha, explained)
        result = through_head.run()
        readings = result.readings
        found.findings += result.findings
        found.undecided += result.undecided
        found.confidence += result.notes
        found.measured.witness = result.witness
    explaining = [each for each in found.findings if each.kind != "witness_mismatch"]
    found.findings += checks.findings(explaining)
    found.findings += index_findings(probe, checks.within, found.findings)
    found.measured.probed = found.samples
    found.measured.layers = [_measured(view, checks, readings, len(picked)) for view in views]
    _identity_notes(views, found, trained=head is not None and next_token.is_trained(head))
    found.confidence.append(
        _coverage(views, found.samples, len(dataset), witnessed=found.measured.witness is not None)
    )
    found.bytes_read = probe.bytes_read
    return found


def _without_identity(
    found: Meaning, probe: ProbeSet, sequences: Sequences, head: TargetHead | None
) -> None:
    """What can be checked where tokens are too few for the identity probe."""
    manifest = probe.dataset.manifest
    checks = RowChecks(probe, sequences, log_threshold(max(len(probe), 1) * len(manifest.layers)))
    if head is not None and manifest.final_layer in manifest.layers:
        through_witness = WitnessChecks(probe, head, set())
        found.findings += through_witness.run(foretells=False, already_wrong=False)
        found.confidence.append(through_witness.note)
        found.measured.witness = through_witness.measured
    if len(probe):
        for layer in manifest.layers:
            collector = checks.collector()
            for sample, position in enumerate(probe.positions):
                collector.see(sample, probe.states(position, layer))
            checks.look(layer, collector.facts())
        found.findings += checks.findings([])
        found.findings += index_findings(probe, checks.within, found.findings)
    found.bytes_read = probe.bytes_read


def _weightless_findings(found: Meaning, probe: ProbeSet, views: Sequence[LayerView]) -> None:
    for view in views:
        found.findings += view.broken
    found.findings += _shifted_set(views)
    places = layer_profile.misplaced({view.layer: view.profile for view in views})
    found.findings += _misplaced(probe, places)
    known = {(sample, layer) for sample, layer, _ in places}
    found.findings += doubt_findings(probe, views, known)


def _measured(
    view: LayerView,
    checks: RowChecks,
    readings: Mapping[int, next_token.NextToken],
    picked: int,
) -> LayerMeasured:
    reading = readings.get(view.layer)
    following = None
    if reading is not None:
        following = _by_shift(reading.by_shift, reading.shift, picked)
    agreement = view.agreement
    return LayerMeasured(
        layer=view.layer,
        identity=_by_shift(agreement.by_shift, agreement.shift, agreement.tested),
        identity_chance=view.chance,
        next_token=following,
        rms=checks.rms[view.layer],
    )


def _by_shift(shares: Mapping[int, float], best: int | None, tested: int) -> ByShift:
    shifts = sorted(shares)
    return ByShift(
        shifts=shifts, shares=[shares[shift] for shift in shifts], best=best, tested=tested
    )


def _head(model: str | None, revision: str | None, found: Meaning) -> TargetHead | None:
    if model is None:
        found.confidence.append(
            "Without --model only token identity was checked. Not proven: that the final layer is "
            "the final one, its norm state, and the order of the layers."
        )
        return None
    try:
        return load_head(model, revision)
    except UnknownHeadError as error:
        found.undecided.append(f"Next token and witness: {error}")
        return None


def _shifted_set(views: Sequence[LayerView]) -> list[Finding]:
    off = [view for view in views if view.agreement.shift]
    everywhere = len(off) == len(views) and len({view.agreement.shift for view in off}) == 1
    found = []
    for view in off[:1] if everywhere else off:
        shares = view.agreement.by_shift
        shift = view.agreement.shift or 0
        found.append(
            Finding(
                kind="shifted",
                layer=None if everywhere else view.layer,
                detail=f"over the whole set, row t holds the state of token t{shift:+d}: at layer "
                f"{view.layer} states name that token in {shares[shift]:.0%} of rows, their own in "
                f"{shares[0]:.0%}.",
                expected="the best agreement at shift 0",
                advice="Extract again, or import with the right shift.",
            )
        )
    return found


def _misplaced(probe: ProbeSet, places: Sequence[tuple[int, int, int]]) -> list[Finding]:
    return [
        Finding(
            kind="layers_swapped",
            detail=f"the states in layer {layer}'s place look like layer {like}'s.",
            sample_id=probe.sample_id(probe.positions[sample]),
            shard=probe.shard(probe.positions[sample]),
            layer=layer,
            advice=REPAIR,
        )
        for sample, layer, like in places
    ]


def _identity_notes(views: Sequence[LayerView], found: Meaning, *, trained: bool) -> None:
    lowest = views[0]
    spoke = [view for view in views if view.agreement.shift is not None]
    for view in spoke:
        shares = ", ".join(f"{k:+d}: {v:.0%}" for k, v in view.agreement.by_shift.items())
        found.confidence.append(
            f"Token identity at layer {view.layer}, over {view.agreement.tested:,} rows: agreement "
            f"by shift {shares}; a stranger's rows {view.chance:.0%}."
        )
    silent = [view.layer for view in views if view.agreement.shift is None]
    if spoke and silent:
        found.confidence.append(
            f"Token identity says nothing at layers {silent}: too few rows, or no shift stands out."
        )
    if spoke:
        return
    if any(finding.sample_id is None for finding in found.findings):
        return  # the whole set is known to be wrong; what the probe lacks is explained
    best = max(lowest.agreement.by_shift.values())
    if trained and lowest.agreement.tested >= UNRELATED_ROWS and best < 2 * lowest.chance:
        found.findings.append(
            Finding(
                kind="unrelated",
                layer=lowest.layer,
                detail=f"over {lowest.agreement.tested:,} rows, states say no more of their tokens "
                f"than a stranger's do ({best:.1%} against {lowest.chance:.1%}).",
                advice="Extract again.",
            )
        )
        return
    found.undecided.append(
        f"Token identity: no shift stands out at any layer ({lowest.agreement.tested:,} rows of "
        f"{found.samples:,} samples could be tested)."
    )


def _coverage(views: Sequence[LayerView], looked_at: int, total: int, *, witnessed: bool) -> str:
    alone = views[0].enough
    layers = f"at every one of {len(views)} layers" if len(views) > 1 else "at its one layer"
    if looked_at >= total:
        return (
            f"All {total:,} samples were probed {layers}, {alone:,} of them long enough to judge "
            "alone."
        )
    share = caught_share(alone, total)
    return (
        f"{looked_at:,} of {total:,} samples were probed {layers}, {alone:,} of them long enough "
        f"to judge alone: if {share:.1%} or more of the samples were bad, one would have been met "
        "with 95 % probability. Of the others only the index statistics"
        + (" and the last row's witness" if witnessed else "")
        + " were looked at."
    )
