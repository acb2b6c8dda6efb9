"""Source rows to prompts: templated, masked, split, and refused with a reason where unusable."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data.extractor.chat import ChatEncoder, context_length
from eagle3data.extractor.messages import RowError, row_messages
from eagle3data.extractor.prompts import prompts_metadata, prompts_writer
from eagle3data.extractor.sources import RejectsFile, SourceRow, output_file, read_rows, scalars
from eagle3data.schema.digest import sample_digest
from eagle3data.schema.errors import InputError
from eagle3data.schema.index import PROMPTS_SCHEMA
from eagle3data.schema.target import describe_target

_ROWS_A_BATCH = 1024
_CONVERSATION_COLUMNS = ("messages", "conversations", "input_ids", "loss_mask", "tools")


@dataclass(kw_only=True)
class PrepareOptions:
    """How rows become prompts.

    Attributes:
        max_length: longer samples are refused, never truncated; by default the model's context.
        eval_fraction: share of the samples in the `eval` split, chosen by a hash of the content.
        max_rejects: share of the rows that may be refused before the run is not fine.
        strict: stop at the first row that can't be used.
    """

    max_length: int | None = None
    eval_fraction: float = 0.05
    max_rejects: float = 0.05
    strict: bool = False
    revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"a max length of {self.max_length} tokens; expected at least 1.")
        for name in ("eval_fraction", "max_rejects"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name.replace('_', ' ')} is {value}; expected 0 to 1.")


@dataclass(kw_only=True)
class PrepareReport:
    """What came of the rows. `reasons` counts refusals by their first words."""

    prompts: str
    rejects: str
    max_rejects: float
    rows: int = 0
    rejected: int = 0
    samples: int = 0
    eval_samples: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    longest: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether few enough rows were refused, and some could be used."""
        return self.samples > 0 and self.rejected <= self.max_rejects * self.rows

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def prepare(
    sources: Sequence[str],
    model: str,
    out: str | Path,
    options: PrepareOptions | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> PrepareReport:
    """Write the prompts file of some sources, and beside it the rows that could not be used.

    Args:
        sources: JSONL or Parquet files with `messages`, `conversations`, or `input_ids` and
            `loss_mask`.
        model: folder or id of the target, whose tokenizer and chat template are used.
        out: the prompts file; written under another name and renamed when complete.
        on_bytes: told of the bytes of the sources as they are done.

    Raises:
        InputError: a source or the model can't be read, or a row can't be used and
            `options.strict` is set.
    """
    options = options or PrepareOptions()
    out = output_file(out, sources)
    converter = _Converter(model, options)
    rejects = RejectsFile.beside(out)
    report = PrepareReport(
        prompts=str(out), rejects=str(rejects.path), max_rejects=options.max_rejects
    )
    metadata = prompts_metadata(model, converter.tokenizer, converter.max_length)
    with prompts_writer(out, metadata) as writer:
        samples = _samples(sources, converter, rejects, report, options.strict, on_bytes)
        schema = PROMPTS_SCHEMA.with_metadata(metadata)
        for batch in _batches(samples):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
        if not report.rows:
            raise InputError(f"{', '.join(sources)}: no rows in there.")
    rejects.finish()
    report.rejected = len(rejects.reasons)
    report.reasons = dict(Counter(map(_kind, rejects.reasons)).most_common())
    return report


def _samples(
    sources: Sequence[str],
    converter: _Converter,
    rejects: RejectsFile,
    report: PrepareReport,
    strict: bool,
    on_bytes: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    """Prompts rows of the sources; what can't be used goes to the rejects."""
    seen: Counter[str] = Counter()
    for row in read_rows(sources):
        report.rows += 1
        try:
            samples = converter.convert(row)
        except RowError as error:
            if strict:
                raise InputError(f"{row.place}: {error}. Nothing was written.") from None
            rejects.add(row, str(error))
            samples = []
        for sample in samples:
            name = sample["sample_id"]
            seen[name] += 1
            if seen[name] > 1:
                sample["sample_id"] = f"{name}-{seen[name]}"
            report.samples += 1
            report.eval_samples += sample["split"] == "eval"
            report.tokens += len(sample["input_ids"])
            report.loss_tokens += sum(sample["loss_mask"])
            report.longest = max(report.longest, len(sample["input_ids"]))
            yield sample
        on_bytes(row.size)


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS_A_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class _Converter:
    """Turns one source row into prompts rows, for one model."""

    def __init__(self, model: str, options: PrepareOptions) -> None:
        self._model = model
        self._options = options
        target, self.tokenizer = describe_target(model, options.revision)
        self._vocab_size = target.vocab_size
        self.max_length = options.max_length or context_length(model, options.revision)

    @cached_property
    def _encoder(self) -> ChatEncoder:
        options = self._options
        return ChatEncoder.for_model(
            self._model, revision=options.revision, trust_remote_code=options.trust_remote_code
        )

    def convert(self, row: SourceRow) -> list[dict[str, Any]]:
        """The samples of a row: one, or more where the template rewrites earlier turns.

        Raises:
            RowError: the row can't be used.
        """
        if row.value is None:
            raise RowError(row.problem)
        extra = scalars(row.value, _CONVERSATION_COLUMNS)
        messages = row_messages(row.value)
        if messages is not None:
            encoded = self._encoder.encode(messages, _tools(row.value))
            parts = [(chat.input_ids, chat.loss_mask, chat.turns) for chat in encoded]
        elif row.value.get("input_ids") is not None:
            parts = [(*_given(row.value), [])]
        else:
            raise RowError("neither `messages`, `conversations` nor `input_ids` in the row")
        for ids, mask, _ in parts:
            self._check(ids, mask)
        # All parts of a row belong to one split: they repeat each other's beginning.
        split = self._split(_name(*parts[-1][:2]))
        return [
            {
                "sample_id": _name(ids, mask),
                "input_ids": ids,
                "loss_mask": [bool(kept) for kept in mask],
                "source": row.place,
                "split": split,
                "source_extra": list(
                    {**extra, **({"turns": json.dumps(turns)} if len(parts) > 1 else {})}.items()
                ),
            }
            for ids, mask, turns in parts
        ]

    def _check(self, ids: list[int], mask: list[int]) -> None:
        if not any(mask):
            raise RowError("no assistant token: the loss mask is empty")
        if self.max_length is not None and len(ids) > self.max_length:
            raise RowError(f"too long: {len(ids)} tokens, the limit is {self.max_length}")
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise RowError(
                f"token ids from {min(ids)} to {max(ids)}, outside of the vocabulary "
                f"0..{self._vocab_size - 1}"
            )

    def _split(self, name: str) -> str:
        return "eval" if int(name, 16) < self._options.eval_fraction * 16 ** len(name) else "train"


def _given(row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Ids and mask of a row that brings its own."""
    ids, mask = row["input_ids"], row.get("loss_mask")
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        raise RowError("`input_ids` is not a list of whole numbers")
    if not isinstance(mask, list) or any(m not in (0, 1) for m in mask):
        raise RowError("`loss_mask` is not a list of 0 and 1")
    if len(mask) != len(ids):
        raise RowError(f"mask length: {len(ids)} token ids but {len(mask)} mask values")
    return ids, [int(m) for m in mask]


def _tools(row: dict[str, Any]) -> list[Any] | None:
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            raise RowError("`tools` is not JSON") from None
    if tools and not isinstance(tools, list):
        raise RowError(f"`tools` is {type(tools).__name__}, expected a list")
    return tools or None


def _name(ids: list[int], mask: list[int]) -> str:
    return sample_digest(
        np.asarray(ids, dtype=np.int64).astype(np.int32), np.asarray(mask, dtype=np.uint8)
    )


def _kind(reason: str) -> str:
    """A reason without its particulars, for counting."""
    return re.sub(r"^message \d+( \(\w+\))?:? ?", "", reason).partition(":")[0].partition(";")[0]
