"""One captured layer through the probes that need no weights, and what they find in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from eagle3data.validation.findings import REPAIR, Finding
from eagle3data.validation.owners import find_owner
from eagle3data.validation.probe_set import ProbeSet
from eagle3data.validation.row_checks import RowChecks
from eagle3data.validation.sample_verdicts import Doubt, SampleJudge
from eagle3data.validation.token_identity import Agreement, Sequences, features, measure

if TYPE_CHECKING:
    from torch import Tensor

MAX_OWNER_SEARCHES = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerView:
    """What one layer looks like.

    Attributes:
        layer: canonical id.
        agreement: the identity probe over the set.
        typical: a sample's usual share of rows that predict their own token.
        chance: the share that a stranger's rows would.
        enough: samples with rows enough for a verdict of their own.
        doubts: samples, and stretches of samples, that don't fit.
        owners: by place in `doubts`, the index row whose tokens the states fit.
        profile: `[n, H]` float32, each sample's mean row at unit rms.
        picked: `[P, H]` the rows that the next-token probe reads.
        broken: findings of zero and not finite rows.
    """

    layer: int
    agreement: Agreement
    typical: float
    chance: float
    enough: int
    doubts: list[Doubt]
    owners: dict[int, int]
    profile: Tensor
    picked: Tensor
    broken: list[Finding]


def look(
    probe: ProbeSet,
    sequences: Sequences,
    classes: Tensor,
    layer: int,
    picked: Tensor,
    log_alpha: float,
    checks: RowChecks,
) -> LayerView:
    """Run a layer through the identity probe, and show its rows to the row checks.

    Args:
        probe: the samples.
        sequences: their tokens.
        classes: `frequent_tokens(sequences)`.
        layer: canonical id.
        picked: `[P]` rows whose states are kept for the next-token probe.
        log_alpha: threshold of each single test.
        checks: of the rows.
    """
    import torch

    collector = checks.collector()
    kept: dict[int, Tensor] = {}

    def read(sample: int) -> Tensor:
        states = probe.states(probe.positions[sample], layer)
        mine = picked[sequences.sample_of[picked] == sample] - sequences.bounds[sample]
        kept[sample] = states[mine]
        collector.see(sample, states)
        return states

    rows, profile = features(read, len(sequences))
    agreement = measure(rows, sequences, classes, log_alpha)
    checks.look(layer, collector.facts(), agreement.right.numpy())
    judge = SampleJudge(agreement, sequences, log_alpha)
    empty = rows.abs().amax(1) == 0
    broken = list(_broken(probe, sequences, layer, empty))
    broken_samples = set(sequences.sample_of[empty].tolist())
    doubts = [doubt for doubt in judge.doubts() if doubt.sample not in broken_samples]
    owners = _owners(probe, sequences, agreement, doubts, log_alpha)
    kept_doubts = [at for at, doubt in enumerate(doubts) if doubt.sure or at in owners]
    return LayerView(
        layer=layer,
        agreement=agreement,
        typical=judge.typical,
        chance=judge.chance,
        enough=judge.enough,
        doubts=[doubts[at] for at in kept_doubts],
        owners={new: owners[at] for new, at in enumerate(kept_doubts) if at in owners},
        profile=profile,
        picked=torch.cat([kept[sample] for sample in range(len(sequences))]),
        broken=broken,
    )


def _broken(probe: ProbeSet, sequences: Sequences, layer: int, empty: Tensor) -> Iterator[Finding]:
    import torch

    for sample in sorted(set(sequences.sample_of[empty].tolist())):
        position = probe.positions[sample]
        states = probe.states(position, layer).float()
        at = empty[sequences.rows(sample)].nonzero().flatten()
        finite = bool(torch.isfinite(states[at]).all())
        yield Finding(
            kind="all_zero" if finite else "nonfinite",
            detail=f"{len(at)} of {len(states)} rows are "
            + ("all zero; a real state never is." if finite else "not finite."),
            sample_id=probe.sample_id(position),
            shard=probe.shard(position),
            layer=layer,
            token_range=None if len(at) == len(states) else (int(at[0]), int(at[-1]) + 1),
            advice=REPAIR,
            chance=0.0,
        )


def index_texts(probe: ProbeSet) -> list[npt.NDArray[np.int32]]:
    """Token ids of every sample of the set, views of the index."""
    column = probe.dataset.index["input_ids"]
    return [np.asarray(row.values.to_numpy(zero_copy_only=False)) for row in column]


def _owners(
    probe: ProbeSet,
    sequences: Sequences,
    agreement: Agreement,
    doubts: Sequence[Doubt],
    log_alpha: float,
) -> dict[int, int]:
    strangers = [at for at, doubt in enumerate(doubts) if doubt.shift is None]
    if not strangers:
        return {}
    texts, found = index_texts(probe), {}
    for at in strangers[:MAX_OWNER_SEARCHES]:
        doubt = doubts[at]
        first = sequences.bounds[doubt.sample]
        predicted = agreement.predicted[first + doubt.rows[0] : first + doubt.rows[1]].numpy()
        places = np.arange(*doubt.rows, dtype=np.int64) + (agreement.shift or 0)
        own = probe.positions[doubt.sample]
        owner = find_owner(predicted, places, texts, own, log_alpha)
        if owner is not None:
            found[at] = owner
    return found


def doubt_findings(
    probe: ProbeSet, views: Sequence[LayerView], known: set[tuple[int, int]]
) -> list[Finding]:
    """One finding for each sample and explanation; all layers alike are one finding.

    Args:
        probe: the samples.
        views: every captured layer.
        known: `(sample, layer)` that are explained already.
    """
    grouped: dict[tuple[int, int | None, int | None, bool], list[tuple[LayerView, Doubt]]] = {}
    for view in views:
        for at, doubt in enumerate(view.doubts):
            if (doubt.sample, view.layer) in known:
                continue
            key = (doubt.sample, doubt.shift, view.owners.get(at), doubt.whole)
            grouped.setdefault(key, []).append((view, doubt))
    found: list[Finding] = []
    for (sample, shift, owner, whole), seen in grouped.items():
        layers = sorted({view.layer for view, _ in seen})
        together = len(layers) == len(views)
        for view, doubt in seen[:1] if together else seen:
            ranges = [other.rows for _, other in (seen if together else [(view, doubt)])]
            token_range = (min(r[0] for r in ranges), max(r[1] for r in ranges))
            found.append(
                Finding(
                    kind="shifted" if shift is not None else "swapped_samples",
                    detail=_doubt_detail(probe, shift, owner, view, doubt),
                    sample_id=probe.sample_id(probe.positions[sample]),
                    shard=probe.shard(probe.positions[sample]),
                    layer=None if together else view.layer,
                    token_range=None if whole else token_range,
                    expected=f"about {view.typical:.0%} of rows naming their own token, as in the "
                    "other samples",
                    advice=REPAIR,
                )
            )
    return found


def _doubt_detail(
    probe: ProbeSet, shift: int | None, owner: int | None, view: LayerView, doubt: Doubt
) -> str:
    agreed = (
        f"{doubt.agreement:.0%} of {doubt.tested} rows name their own token at layer {view.layer} "
        f"(a stranger's would: {view.chance:.0%})"
    )
    if shift is not None:
        return f"its states are off: row t holds the state of token t{shift:+d}; {agreed}."
    if owner is not None:
        return f"its states are those of sample {probe.sample_id(owner)}; {agreed}."
    return f"its states are not those of its tokens, nor of another sample's looked at; {agreed}."
