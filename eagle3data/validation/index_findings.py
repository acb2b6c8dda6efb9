"""What the index statistics of every sample say, as findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from eagle3data.schema.index import list_values
from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.index_profile import IndexProfile
from eagle3data.validation.probe_set import ProbeSet
from eagle3data.validation.significance import log_threshold


def index_findings(
    probe: ProbeSet, within: dict[int, float], known: Iterable[Finding]
) -> list[Finding]:
    """Samples and layers whose statistics are unlike the rest's, or another's to the last digit.

    Args:
        probe: gives access to the set.
        within: by layer, the deviation of row norms (log) that is usual within one sample.
        known: what was found already; a sample or layer that it explains is left out.
    """
    layers = probe.dataset.manifest.layers
    try:
        profile = IndexProfile(probe.dataset.index, layers)
    except ValueError:
        return []  # lists of another length than the layers: `quick` has said so
    known = list(known)
    places = {(finding.sample_id, finding.layer) for finding in known}
    found = [
        *_equal_layers(probe, profile),
        *_equal_samples(probe, profile),
        *_scaled(probe, profile, {layer: within.get(layer, math.inf) for layer in layers}),
    ]
    return [
        finding
        for finding in found
        if not places & {(finding.sample_id, None), (finding.sample_id, finding.layer)}
        and not (finding.layer is None and finding.sample_id in {name for name, _ in places})
    ]


def _equal_layers(probe: ProbeSet, profile: IndexProfile) -> Iterator[Finding]:
    total = len(probe.dataset)
    for one, other, rows in profile.equal_layers():
        said = f"layers {one} and {other} hold the same states"
        expected = "another state at every layer"
        if len(rows) > total / 2:
            yield Finding(
                kind="duplicate_layers",
                detail=f"{said} in {len(rows):,} of {total:,} samples.",
                layer=other,
                expected=expected,
                advice="Extract again.",
            )
            continue
        for position in rows:
            yield Finding(
                kind="duplicate_layers",
                detail=f"its {said}.",
                sample_id=probe.sample_id(position),
                shard=probe.shard(position),
                layer=other,
                expected=expected,
                advice=REPAIR,
            )


def _equal_samples(probe: ProbeSet, profile: IndexProfile) -> Iterator[Finding]:
    tokens = probe.dataset.index["input_ids"]
    for one, other in profile.equal_samples():
        if list_values(tokens, one).tolist() == list_values(tokens, other).tolist():
            continue
        for position, twin in ((one, other), (other, one)):
            yield Finding(
                kind="duplicate_rows",
                detail=f"its states are those of sample {probe.sample_id(twin)} (their statistics "
                "agree in every digit at every layer), and its tokens are not.",
                sample_id=probe.sample_id(position),
                shard=probe.shard(position),
                expected="states of its own",
                advice=REPAIR,
            )


def _scaled(probe: ProbeSet, profile: IndexProfile, floors: dict[int, float]) -> Iterator[Finding]:
    log_alpha = log_threshold(len(probe.dataset) * len(floors))
    for found in profile.scaled(floors, log_alpha):
        yield Finding(
            kind="unlike_rest",
            detail=f"its rms, its largest value and its smallest row are at least "
            f"{found.factor:.3g} times those of samples of its length; no other one is beyond a "
            f"factor of {found.limit:.3g}.",
            sample_id=probe.sample_id(found.position),
            shard=probe.shard(found.position),
            layer=found.layer,
            expected="magnitudes like the other samples'",
            advice=REPAIR,
        )
