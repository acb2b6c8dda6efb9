"""What validation says: findings as data, and the report with its verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self, TypeVar

from eagle3data.schema.errors import InputError
from eagle3data.validation.measured import Measured
from eagle3data.validation.overview import Overview
from eagle3data.validation.plain_data import revive

T = TypeVar("T")


class Level(StrEnum):
    """How deep to look; every level begins with `quick`."""

    QUICK = "quick"
    FULL = "full"
    SEMANTIC = "semantic"
    ALL = "all"

    @property
    def reads_contents(self) -> bool:
        return self in (Level.FULL, Level.ALL)

    @property
    def probes_meaning(self) -> bool:
        return self in (Level.SEMANTIC, Level.ALL)


REPAIR = "Run `eagle3data repair URL`, then `extract` again."
"""Advice for what has to be done again."""


def reading_advice(kind: str) -> str:
    """What to do about bytes that could not be read, or were not what was written."""
    if kind == "object_unreadable":
        return "Look at the disk or the network, then validate again: it may have passed."
    return REPAIR


class Severity(StrEnum):
    """An error makes the set faulty; a warning is legal but has gone wrong for others."""

    ERROR = "error"
    WARNING = "warning"


class Verdict(StrEnum):
    """What a report comes to."""

    CLEAN = "clean"
    FAULTY = "faulty"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: the fault's code (`shifted`, `chunk_corrupt`, ...).
        detail: a sentence: what was found.
        severity: error or warning.
        sample_id: the sample, or None where it concerns a shard or the whole set.
        shard: the shard it lies in, or None.
        layer: canonical id, or None where it concerns all layers or none.
        token_range: first and past-the-last token within the sample, where only a part is wrong.
        expected: what should have been there.
        advice: what to do.
        chance: of a clean set showing this, at most: 0 where it is proven (a checksum, a count,
            an object that is gone); None until whoever gathers the findings fills it in.
    """

    kind: str
    detail: str
    severity: Severity = Severity.ERROR
    sample_id: str | None = None
    shard: int | None = None
    layer: int | None = None
    token_range: tuple[int, int] | None = None
    expected: str | None = None
    advice: str | None = None
    chance: float | None = None

    @property
    def sure(self) -> str:
        """How sure it is, in words; `chance` is the number."""
        if self.chance is None:
            return "not said"
        if self.chance <= 0:
            return "proven"
        return f"at most 1 clean set in {1 / self.chance:,.0f} shows this"

    def as_dict(self) -> dict[str, Any]:
        """The six fields that every finding has, then those of the others that say something."""
        fixed = {
            "kind": self.kind,
            "severity": self.severity.value,
            "sample_id": self.sample_id,
            "shard": self.shard,
            "layer": self.layer,
            "detail": self.detail,
        }
        optional = {
            "token_range": list(self.token_range) if self.token_range else None,
            "expected": self.expected,
            "advice": self.advice,
            "chance": self.chance,
            "sure": self.sure if self.chance is not None else None,
        }
        return fixed | {key: value for key, value in optional.items() if value is not None}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """What `as_dict` made.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        span = value.get("token_range")
        return cls(
            **{
                **{key: said for key, said in value.items() if key != "sure"},
                "severity": Severity(value["severity"]),
                "token_range": (int(span[0]), int(span[1])) if span else None,
            }
        )


@dataclass(kw_only=True)
class Checked:
    """How much was looked at: samples and tokens at the deepest level, bytes of all reads."""

    samples: int = 0
    tokens: int = 0
    bytes: int = 0


@dataclass(kw_only=True)
class Report:
    """The result of `validate`.

    Attributes:
        url: the data set.
        level: how deep it was asked to look.
        findings: errors first, each with where it lies.
        checked: how much was looked at.
        undecided: sentences, one a question that the level asks and these data can't answer.
        confidence: sentences: what was looked at, and what would have been caught.
        hidden: committed samples that tombstones hide; they were not looked at.
        parts: digest of the index part of each shard that an error concerns, by shard: a report
            that is read later says nothing of a shard that was done again since.
        overview: the set's shape; None where its index could not be read.
        measured: the numbers behind the semantic level; None where it did not run.
    """

    url: str
    level: Level
    findings: list[Finding] = field(default_factory=list)
    checked: Checked = field(default_factory=Checked)
    undecided: list[str] = field(default_factory=list)
    confidence: list[str] = field(default_factory=list)
    hidden: int = 0
    parts: dict[int, str] = field(default_factory=dict)
    overview: Overview | None = None
    measured: Measured | None = None

    @property
    def errors(self) -> list[Finding]:
        """The findings that make the set faulty."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    @property
    def verdict(self) -> Verdict:
        """Faulty with any error; else undetermined if a question stayed open; else clean."""
        if self.errors:
            return Verdict.FAULTY
        return Verdict.UNDETERMINED if self.undecided else Verdict.CLEAN

    @property
    def ok(self) -> bool:
        """Whether the verdict is clean."""
        return self.verdict is Verdict.CLEAN

    def add(self, findings: Iterable[Finding], *, chance: float = 0.0) -> None:
        """Take findings in, without those that say the same of the same place.

        One that knows which tokens are concerned tells them to an earlier one that doesn't.

        Args:
            findings: any.
            chance: that a clean set shows them, for those that don't say so themselves.
        """
        earlier = {_place(finding): at for at, finding in enumerate(self.findings)}
        exactly = {(_place(finding), finding.token_range) for finding in self.findings}
        for finding in findings:
            at, span = earlier.get(_place(finding)), finding.token_range
            if (_place(finding), span) in exactly or (at is not None and span is None):
                continue
            exactly.add((_place(finding), span))
            if at is not None and self.findings[at].token_range is None:
                self.findings[at] = replace(self.findings[at], token_range=span)
                continue
            said = chance if finding.chance is None else finding.chance
            self.findings.append(replace(finding, chance=said))
        self.findings.sort(key=lambda finding: finding.severity is not Severity.ERROR)

    def to_json(self) -> str:
        """The report as JSON text."""
        value = {
            "verdict": self.verdict.value,
            "ok": self.ok,
            "level": self.level.value,
            "findings": [finding.as_dict() for finding in self.findings],
            "checked": {
                "samples": self.checked.samples,
                "tokens": self.checked.tokens,
                "bytes": self.checked.bytes,
            },
            "undecided": self.undecided,
            "confidence": self.confidence,
            "hidden": self.hidden,
            "url": self.url,
            "parts": {str(shard): digest for shard, digest in sorted(self.parts.items())},
            "overview": asdict(self.overview) if self.overview else None,
            "measured": asdict(self.measured) if self.measured else None,
        }
        return json.dumps(value, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` wrote.

        Raises:
            InputError: it is something else.
        """
        try:
            value = json.loads(text)
            return cls(
                url=value["url"],
                level=Level(value["level"]),
                findings=[Finding.from_dict(finding) for finding in value["findings"]],
                checked=Checked(**value["checked"]),
                undecided=value["undecided"],
                confidence=value["confidence"],
                hidden=value["hidden"],
                parts={int(shard): digest for shard, digest in value["parts"].items()},
                overview=_optional(Overview, value.get("overview")),
                measured=_optional(Measured, value.get("measured")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"that is no report of `eagle3data validate --json`: {type(error).__name__}, "
                f"{error}."
            ) from None


def _optional(kind: type[T], value: Any) -> T | None:
    return None if value is None else revive(kind, value)


def _place(finding: Finding) -> tuple[Any, ...]:
    where = (finding.sample_id, finding.shard if finding.sample_id is None else None)
    return (finding.kind, *where, finding.layer)
