"""Loss masks against the roles that the token ids themselves show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import InputError
from eagle3data.schema.index import list_values
from eagle3data.storage.tokenizer import load_tokenizer
from eagle3data.validation.findings import Finding, Severity
from eagle3data.validation.mask_roles import Roles, UnknownRolesError, learn_roles
from eagle3data.validation.mask_turns import ASSISTANT, CLIPPED, MaskOnTurns, find_turns, lay

MOST_SAMPLES = 50_000
ALIKE = 0.9
"""Share of the samples with the same fault that makes it the set's."""
USUAL = 0.05
"""Share of the runs whose ends take in the same that makes it one of the set's customs."""
_ADVICE = "Make the prompts anew: check the chat template and what shifts the mask, then extract."


@dataclass(kw_only=True)
class MaskChecks:
    """What comparing masks found.

    Attributes:
        findings: what is wrong.
        undecided: questions that stayed open.
        confidence: sentences: what was compared.
    """

    findings: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    confidence: list[str] = field(default_factory=list)


def check_masks(
    dataset: Dataset,
    model: str | None,
    revision: str | None = None,
    *,
    trust_remote_code: bool = False,
) -> MaskChecks:
    """Compare loss masks with the assistant's turns in the same samples' ids. No state is read.

    Args:
        dataset: opened.
        model: folder or hub id of the target, or of its tokenizer alone.
        revision: hub revision.
        trust_remote_code: let the tokenizer's own code run.
    """
    found = MaskChecks()
    if model is None:
        found.confidence.append(
            "Without --model not proven: that loss masks lie on the assistant's tokens."
        )
        return found
    try:
        tokenizer = load_tokenizer(model, revision=revision, trust_remote_code=trust_remote_code)
    except InputError as error:
        found.confidence.append(f"Loss masks were not compared with roles: {error}")
        return found
    if not tokenizer.chat_template:
        found.confidence.append(
            "Loss masks were not compared with roles: the tokenizer has no chat template."
        )
        return found
    try:
        roles = learn_roles(tokenizer)
    except UnknownRolesError as error:
        found.undecided.append(f"Loss masks against roles: {error}.")
        return found
    _judge(dataset, roles, found)
    return found


def _judge(dataset: Dataset, roles: Roles, found: MaskChecks) -> None:
    laid = dict(_laid(dataset, roles))
    if not laid:
        found.confidence.append(
            "Loss masks were not compared with roles: no sample holds an assistant's turn as the "
            "chat template writes it."
        )
        return
    usual = _usual(laid)
    shifts = {at: mask.shifts(usual) for at, mask in laid.items()}
    shifted = _shifted(dataset, shifts, found)
    wrong = {at: mask for at, mask in laid.items() if mask.others and at not in shifted}
    found.findings += _wrong_roles(dataset, wrong, len(laid))
    runs = [run for mask in laid.values() for run in mask.runs]
    exact = sum(run.taken is not None for run in runs)
    found.confidence.append(
        f"Loss masks of {len(laid):,} of {len(dataset):,} samples were compared with the turns in "
        f"their ids: {exact:,} of {len(runs):,} masked stretches are an assistant's turn from "
        f"beginning to end{_customs(usual) if exact else ''}."
    )


def _laid(dataset: Dataset, roles: Roles) -> Iterator[tuple[int, MaskOnTurns]]:
    """By index row, the masks that there is something to compare with."""
    for at in _spread(len(dataset)):
        ids = np.asarray(list_values(dataset.index["input_ids"], at))
        mask = np.asarray(list_values(dataset.index["loss_mask"], at)).astype(bool)
        # All or nothing masked is `quick`'s to find.
        if len(ids) != len(mask) or mask.all() or not mask.any():
            continue
        turns = find_turns(ids, roles)
        if any(turn.role == ASSISTANT for turn in turns):
            yield at, lay(mask, turns)


def _spread(samples: int) -> list[int]:
    """Index rows to compare: all, or `MOST_SAMPLES` evenly spread."""
    wanted = min(samples, MOST_SAMPLES)
    return [(2 * at + 1) * samples // (2 * wanted) for at in range(wanted)]


def _usual(laid: dict[int, MaskOnTurns]) -> frozenset[str]:
    """What the ends of the set's masks take in: by its right ones, if most are right."""
    runs = [run for mask in laid.values() for run in mask.runs]
    taken = Counter(run.taken for run in runs if run.taken is not None)
    counted = taken
    if 2 * taken.total() < len(runs):
        counted = Counter(
            words for run in runs for ends in run.shifts.values() for words in ends - {CLIPPED}
        )
    return frozenset(w for w, count in counted.items() if count >= USUAL * counted.total())


def _customs(usual: frozenset[str]) -> str:
    return f" ({' or '.join(sorted(usual))})"


def _shifted(dataset: Dataset, shifts: dict[int, dict[int, bool]], found: MaskChecks) -> set[int]:
    """Report masks that lie beside their turns; the index rows that are explained by it."""
    sure = {
        at: min((k for k, shown in fits.items() if shown), key=abs)
        for at, fits in shifts.items()
        if any(fits.values())
    }
    if not sure:
        return set()
    usual, count = Counter(sure.values()).most_common(1)[0]
    alike = {at for at, fits in shifts.items() if usual in fits}
    if count == 1 or len(alike) < ALIKE * len(shifts):
        alike = set()
    else:
        found.findings.append(
            Finding(
                kind="mask_shifted",
                detail=f"the loss masks of {len(alike):,} of {len(shifts):,} samples lie "
                f"{usual:+d} tokens from the assistant's turns.",
                expected="1 on the assistant's own tokens, unshifted",
                advice=_ADVICE,
                chance=0.0,
            )
        )
    found.findings += [
        Finding(
            kind="mask_shifted",
            detail=f"its loss mask lies {shift:+d} tokens from the assistant's turns.",
            sample_id=_name(dataset, at),
            shard=_shard(dataset, at),
            expected="1 on the assistant's own tokens, unshifted",
            advice=_ADVICE,
            chance=0.0,
        )
        for at, shift in sure.items()
        if at not in alike
    ]
    return alike | sure.keys()


def _wrong_roles(dataset: Dataset, wrong: dict[int, MaskOnTurns], compared: int) -> list[Finding]:
    whole = len(wrong) >= ALIKE * compared and len(wrong) > 1
    if whole:
        roles = Counter(role for mask in wrong.values() for role, _, _ in mask.others)
        return [
            Finding(
                kind="mask_wrong_role",
                detail=f"the loss masks of {len(wrong):,} of {compared:,} samples cover tokens of "
                f"others than the assistant: {', '.join(sorted(roles))}.",
                expected="1 on the assistant's own tokens only",
                advice=_ADVICE,
                chance=0.0,
            )
        ]
    return [_wrong_role(dataset, at, mask) for at, mask in wrong.items()]


def _wrong_role(dataset: Dataset, at: int, mask: MaskOnTurns) -> Finding:
    roles = sorted({role for role, _, _ in mask.others})
    first, last = mask.others[0][1], mask.others[-1][2]
    # An answer may hold the text of another turn's header; then the mask is right.
    from_answer = all(
        run.starts
        for run in mask.runs
        if any(run.first < b and a < run.last for _, a, b in mask.others)
    )
    return Finding(
        kind="mask_wrong_role",
        severity=Severity.WARNING if from_answer else Severity.ERROR,
        detail=f"its loss mask covers tokens of others than the assistant: {', '.join(roles)}."
        + (" It goes on from an answer, which may hold such text." if from_answer else ""),
        sample_id=_name(dataset, at),
        shard=_shard(dataset, at),
        token_range=(first, last),
        expected="1 on the assistant's own tokens only",
        advice=_ADVICE,
        chance=0.0,
    )


def _name(dataset: Dataset, at: int) -> str:
    return str(dataset.index["sample_id"][at].as_py())


def _shard(dataset: Dataset, at: int) -> int:
    offset = int(dataset.index["token_offset"].to_numpy()[at])
    return dataset.manifest.storage.axis.shard_of(offset)
