"""States that were captured elsewhere, taken in: an extraction whose engine only reads.

The source is scanned first (ids and masks, little of its bytes), which gives the same plan as an
extraction of the same tokens would have: shards, claims, resumption and Ray come with it.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data.extractor.engines.choice import ImportedStates
from eagle3data.extractor.prompts import prompts_metadata, prompts_writer
from eagle3data.extractor.run import ExtractOptions, ExtractReport
from eagle3data.interop.choice import format_of, open_source
from eagle3data.interop.source import Entry, SourceFacts, SourceOptions, StateSource, Tokens
from eagle3data.schema.digest import sample_digest
from eagle3data.schema.errors import InputError, LayerError, SampleError
from eagle3data.schema.index import PROMPTS_SCHEMA
from eagle3data.schema.layers import NormState, Numbering, default_layers, to_canonical
from eagle3data.schema.target import describe_target
from eagle3data.storage.ledger import read_ledger, record_failure
from eagle3data.storage.root import Root
from eagle3data.storage.tokenizer import load_tokenizer

Extract = Callable[[str, ExtractOptions], ExtractReport]
_SCAN_THREADS = 8
_ROWS_A_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What a person says of a source, where it doesn't say it itself.

    Attributes:
        source: where it is, and in which layout.
        layers: ids of its slots, in its own order; the final layer may be left out where the
            layout has it in a place of its own.
        numbering: whose ids those are, where not ours.
        norm: whether the final layer's states have the final norm applied.
        all_tokens: take every token as the assistant's, where the source has no mask.
        eval_fraction: share of the samples in the `eval` split, chosen by a hash of the content.
        extraction: what is chosen of the data set that is written.
    """

    source: SourceOptions
    layers: str | None = None
    numbering: Numbering | None = None
    norm: NormState | None = None
    all_tokens: bool = False
    eval_fraction: float = 0.05
    extraction: ExtractOptions = field(default_factory=ExtractOptions)


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What an import did.

    Attributes:
        format: of the source.
        layers: canonical ids of its slots.
        norm_state: of the final layer's states.
        found: samples that the source should have.
        refused: of them, by kind; the ledger says which and why.
        notes: what was lost or is odd.
        extraction: as of an extraction.
    """

    format: str
    layers: list[int]
    norm_state: str
    found: int
    refused: dict[str, int]
    notes: list[str]
    extraction: ExtractReport


def import_states(
    options: ImportOptions,
    model: str,
    url: str,
    extract: Extract,
    on_start: Callable[[int], None] = lambda _: None,
    on_scanned: Callable[[int], None] = lambda _: None,
) -> ImportReport:
    """Take a source in; running it again continues at the next missing shard.

    Args:
        options: see there.
        model: Hugging Face folder or id of the target that the states are of.
        url: root of the data set.
        extract: does the work of a prompts file, here or on a cluster.
        on_start: told how many samples there should be.
        on_scanned: told of samples whose ids have been read.

    Raises:
        InputError: the source can't be read, or doesn't say what it must and nobody did.
        LayerError: layers that the source or the target can't have.
        As `extract`.
    """
    target, tokenizer = describe_target(model, options.extraction.engine.revision)
    options = replace(options, source=_with_padding(options.source, model, options.extraction))
    source = open_source(
        options.source,
        hidden_size=target.hidden_size,
        num_hidden_layers=target.num_hidden_layers,
    )
    facts = source.facts()
    slots = name_slots(facts, options, target.num_hidden_layers)
    norm = _norm_state(facts, options, slots, target.num_hidden_layers)
    entries = source.entries()
    on_start(len(entries))
    scan = _Scan(source, options, target.vocab_size, on_scanned)
    imported = ImportedStates(source=options.source, slots=slots)
    chosen = replace(
        options.extraction,
        layers=",".join(map(str, sorted(slots))),
        numbering=Numbering.CANONICAL,
        norm_state=norm,
        compute_dtype=facts.dtype or options.extraction.compute_dtype,
        engine=replace(options.extraction.engine, imported=imported),
        provenance={
            "imported_from": str(options.source.path),
            "imported_format": source.format,
            **({"imported_model": facts.model} if facts.model else {}),
        },
    )
    with tempfile.TemporaryDirectory(prefix="eagle3data-import-") as folder:
        prompts = Path(folder, "prompts.arrow")
        metadata = prompts_metadata(model, tokenizer, None)
        with prompts_writer(prompts, metadata) as writer:
            schema = PROMPTS_SCHEMA.with_metadata(metadata)
            for rows in _batches(scan.rows(entries)):
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
        if len(scan.problems) == len(entries):
            raise InputError(_nothing_left(options.source.path, scan.problems))
        report = extract(str(prompts), chosen)
    failed = _record(Root(url), scan.problems)
    return ImportReport(
        format=source.format,
        layers=slots,
        norm_state=norm.value,
        found=len(entries),
        refused=failed,
        notes=list(facts.notes),
        extraction=report,
    )


def name_slots(facts: SourceFacts, options: ImportOptions, num_hidden_layers: int) -> list[int]:
    """Canonical ids of a source's slots, in its own order.

    Raises:
        InputError: nobody says which layers they are.
        LayerError: too many, too few, or ones that the target doesn't have.
    """
    if options.layers is None:
        if facts.layers is not None:
            return facts.layers
        usual = ",".join(map(str, default_layers(num_hidden_layers)))
        raise InputError(
            f"{options.source.path} doesn't say which layers its {facts.slots} states a token are. "
            "Give --layers, in the order in which it stores them, as whoever extracted it did "
            f"(vLLM's usual ones of this target are {usual}; if their ids are SGLang's or "
            "SpecForge's, add --numbering sglang). Nothing is guessed: wrong ones train a wrong "
            "draft without an error. `eagle3data validate` says afterwards what the states fit."
        )
    try:
        ids = [int(part) for part in options.layers.split(",")]
    except ValueError:
        raise LayerError(f"--layers {options.layers!r} is not ids separated by commas.") from None
    slots = to_canonical(ids, options.numbering or Numbering.CANONICAL, num_hidden_layers)
    if len(slots) == facts.slots - 1 and facts.norm_state is not None:
        slots.append(num_hidden_layers)
    if len(slots) != facts.slots or len(set(slots)) != len(slots):
        raise LayerError(
            f"--layers {options.layers} names layers {slots}; {options.source.path} has "
            f"{facts.slots} states a token, each of another layer."
        )
    return slots


def _norm_state(
    facts: SourceFacts, options: ImportOptions, slots: list[int], num_hidden_layers: int
) -> NormState:
    if num_hidden_layers not in slots:
        return NormState.PRE
    said = facts.norm_state or options.norm
    if said is None:
        raise InputError(
            f"{options.source.path} doesn't say whether the final layer's states are those before "
            "the final norm (vLLM) or after it (SGLang, Hugging Face): give --norm pre or --norm "
            "post. A norm can't be undone, so they are kept as they are, and the set says which."
        )
    if options.norm not in {None, said}:
        raise InputError(
            f"--norm {options.norm}: in this layout the final states are always {said}-norm. Leave "
            "--norm out."
        )
    return said


def _with_padding(source: SourceOptions, model: str, extraction: ExtractOptions) -> SourceOptions:
    """The source by its format's name, with the id of padding where it may have stored some."""
    source = replace(source, format=format_of(source))
    if source.format != "specforge" or source.pad_token_id is not None:
        return source
    engine = extraction.engine
    tokenizer = load_tokenizer(
        model, revision=engine.revision, trust_remote_code=engine.trust_remote_code
    )
    return replace(source, pad_token_id=tokenizer.pad_token_id)


class _Scan:
    """Reads ids and masks; what can't be read is kept with its problem.

    Attributes:
        problems: by place.
    """

    def __init__(
        self,
        source: StateSource,
        options: ImportOptions,
        vocab_size: int,
        on_scanned: Callable[[int], None],
    ) -> None:
        self._source, self._options, self._vocab_size = source, options, vocab_size
        self._on_scanned = on_scanned
        self._seen: Counter[str] = Counter()
        self.problems: dict[str, SampleError] = {}

    def rows(self, entries: list[Entry]) -> Iterator[dict[str, Any]]:
        """Rows of `PROMPTS_SCHEMA`, in the source's order."""
        threads = min(_SCAN_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, "eagle3data-scan") as pool:
            left = iter(entries)
            while some := list(islice(left, _ROWS_A_BATCH)):
                for entry, found in zip(some, pool.map(self._read, some), strict=True):
                    if isinstance(found, SampleError):
                        self.problems[entry.place] = found
                    else:
                        yield self._row(entry, found)
                self._on_scanned(len(some))

    def _read(self, entry: Entry) -> Tokens | SampleError:
        try:
            tokens = self._source.tokens(entry)
            self._check(entry, tokens)
        except SampleError as error:
            return error
        return tokens

    def _check(self, entry: Entry, tokens: Tokens) -> None:
        ids, mask = tokens.input_ids, tokens.loss_mask
        if mask is None and not self._options.all_tokens:
            raise InputError(
                f"{self._options.source.path} has no loss mask ({entry.place}): which tokens are "
                "the assistant's is not known. Give --dataset with the folder of the data set it "
                "was extracted from, or --all-tokens to train on every token."
            )
        if not len(ids):
            raise SampleError("length_mismatch", entry.place, "it has no tokens.")
        if mask is not None and len(mask) != len(ids):
            raise SampleError(
                "mask_invalid", entry.place, f"{len(ids)} token ids but {len(mask)} mask values."
            )
        if ids.min() < 0 or ids.max() >= self._vocab_size:
            raise SampleError(
                "tokens_invalid",
                entry.place,
                f"token ids from {ids.min()} to {ids.max()}, outside of the vocabulary "
                f"0..{self._vocab_size - 1}.",
            )

    def _row(self, entry: Entry, tokens: Tokens) -> dict[str, Any]:
        mask = tokens.loss_mask
        if mask is None:
            mask = np.ones(len(tokens.input_ids), np.uint8)
        name = sample_digest(tokens.input_ids, mask)
        self._seen[name] += 1
        is_eval = int(name, 16) < self._options.eval_fraction * 16 ** len(name)
        return {
            "sample_id": name if self._seen[name] == 1 else f"{name}-{self._seen[name]}",
            "input_ids": tokens.input_ids,
            "loss_mask": mask.astype(bool),
            "source": entry.place,
            "split": "eval" if is_eval else "train",
            "source_extra": list(tokens.extra.items()),
        }


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(rows, _ROWS_A_BATCH)):
        yield batch


def _nothing_left(path: Path, problems: dict[str, SampleError]) -> str:
    first = next(iter(problems.values()), None)
    why = f"the first of them: {first}" if first else "it has none"
    return f"no sample of {path} can be used; {why}"


def _record(root: Root, problems: dict[str, SampleError]) -> dict[str, int]:
    """A ledger row for each, once; how many of which kind."""
    there = {(row["sample_id"], row["kind"]) for row in read_ledger(root)}
    for place, problem in problems.items():
        if (place, problem.kind) not in there:
            reason = str(problem)
            record_failure(root, shard=0, sample_id=place, kind=problem.kind, reason=reason)
    return dict(Counter(problem.kind for problem in problems.values()))
