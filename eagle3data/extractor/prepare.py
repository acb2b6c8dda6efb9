"""Source rows to prompts: templated, masked, split, and refused with a reason where unusable."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from eagle3data.extractor.converter import Converter, PrepareOptions, Samples, converted
from eagle3data.extractor.messages import RowError
from eagle3data.extractor.prompts import prompts_metadata, prompts_writer
from eagle3data.extractor.sources import RejectsFile, SourceRow, output_file, read_rows
from eagle3data.schema.errors import InputError
from eagle3data.schema.index import PROMPTS_SCHEMA

_ROWS_A_BATCH = 1024


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
    converter = Converter(model, options)
    rejects = RejectsFile.beside(out)
    report = PrepareReport(
        prompts=str(out), rejects=str(rejects.path), max_rejects=options.max_rejects
    )
    metadata = prompts_metadata(model, converter.tokenizer, converter.max_length)
    with prompts_writer(out, metadata) as writer:
        outcomes = converted(read_rows(sources), model, converter, options)
        samples = _samples(outcomes, rejects, report, options.strict, on_bytes)
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
    outcomes: Iterable[tuple[SourceRow, Samples | RowError]],
    rejects: RejectsFile,
    report: PrepareReport,
    strict: bool,
    on_bytes: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    """Prompts rows of the sources; what can't be used goes to the rejects."""
    seen: Counter[str] = Counter()
    for row, outcome in outcomes:
        report.rows += 1
        if isinstance(outcome, RowError):
            if strict:
                raise InputError(f"{row.place}: {outcome}. Nothing was written.")
            rejects.add(row, str(outcome))
        for sample in [] if isinstance(outcome, RowError) else outcome:
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


def _kind(reason: str) -> str:
    """A reason without its particulars, for counting."""
    return re.sub(r"^message \d+( \(\w+\))?:? ?", "", reason).partition(":")[0].partition(";")[0]
