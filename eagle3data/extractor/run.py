"""The extraction: shard after shard, each whole or not at all, continued where it stopped."""

from __future__ import annotations

import datetime
import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data.extractor.engines.base import Captured, Engine, Request
from eagle3data.extractor.plan import Plan, make_plan
from eagle3data.extractor.prompts import PromptsFile, read_prompts
from eagle3data.schema.errors import CorruptionError, InputError, SampleError, SpaceError
from eagle3data.schema.index import list_values
from eagle3data.schema.layers import Numbering
from eagle3data.schema.manifest import StorageDtype
from eagle3data.schema.sample import Sample
from eagle3data.schema.target import checkpoint_dtype
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import (
    consolidate_index,
    create_data_set,
    read_ledger,
    record_failure,
    require_place,
    write_plan,
)
from eagle3data.writers.shard_writer import ShardWriter

ENGINES = ("auto", "transformers")
COMPUTE_DTYPES = ("bfloat16", "float16", "float32")
_SPACE_FACTOR = 1.05
"""Room asked for above the arithmetic: metadata, index, and the file system's own rounding."""


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """What a person chooses about an extraction.

    Attributes:
        layers: `auto` or ids separated by commas.
        numbering: whose ids they are, where not canonical.
        engine: `auto` or a name of `ENGINES`.
        dtype: storage dtype, `float16` or `bfloat16`.
        codec: storage profile: `none`, `lz4` or `pcodec`.
        compute_dtype: dtype the model runs in; `auto` is the checkpoint's own.
        shard_tokens: S; chosen from the prompts by default.
        shards: half-open range of shards to do, `(first, stop)`; all by default.
        revision: of the model, on the hub.
        trust_remote_code: let the model's own code run.
    """

    layers: str = "auto"
    numbering: Numbering | None = None
    engine: str = "auto"
    dtype: str = "float16"
    codec: str = "none"
    compute_dtype: str = "auto"
    shard_tokens: int | None = None
    shards: tuple[int, int] | None = None
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class ExtractReport:
    """What an extraction did.

    Attributes:
        shards: shards of the plan.
        committed: shards that are now committed.
        written: shards that this run committed.
        tokens: tokens of the plan.
        failed: samples in the ledger.
    """

    shards: int
    committed: int
    written: int
    tokens: int
    failed: int


OnStart = Callable[[int, int], None]
OnTokens = Callable[[int, int], None]


def extract(
    prompts_path: str,
    model: str,
    url: str,
    options: ExtractOptions,
    *,
    on_start: OnStart,
    on_tokens: OnTokens,
) -> ExtractReport:
    """Run the target over the prompts and commit what is missing of the data set.

    Args:
        prompts_path: what `prepare` wrote.
        model: Hugging Face folder or id of the target.
        url: root of the data set; created, continued, or left alone when finished.
        options: see there.
        on_start: called once with the tokens to do and the shards to do.
        on_tokens: called with tokens done and the shard in hand after every sample.

    Raises:
        InputError, LayerError: arguments or files that can't be used.
        MismatchError: the place holds another data set.
        SpaceError: the disk can't hold it, or became full; what is committed stays.
    """
    prompts = read_prompts(prompts_path)
    plan = plan_extraction(prompts, model, options)
    root = Root(url)
    require_place(root)
    with root.writer_lock():
        create_data_set(root, plan.manifest, plan.shards)
        write_plan(root, 0, plan.table, plan.facts)
        missing = _missing_shards(root, plan, options.shards)
        if missing:
            _require_space(root, plan, missing)
        on_start(sum(plan.tokens_of(shard) for shard in missing), len(missing))
        if missing:
            engine = _load_engine(model, plan, options)
            for shard in missing:
                _extract_shard(root, plan, prompts, engine, shard, on_tokens)
        gathered = layout.read_gathered(root)
        if gathered is None or set(gathered[1]) != set(layout.committed_shards(root)):
            consolidate_index(root)
    return ExtractReport(
        shards=plan.shards,
        committed=len(layout.committed_shards(root)),
        written=len(missing),
        tokens=plan.sizes.tokens,
        failed=len(read_ledger(root)),
    )


def plan_extraction(prompts: PromptsFile, model: str, options: ExtractOptions) -> Plan:
    """The plan of an extraction, with the engine's facts in its manifest."""
    name = choose_engine(options.engine)
    return make_plan(
        prompts,
        model,
        revision=options.revision,
        layers=options.layers,
        numbering=options.numbering,
        dtype=options.dtype,
        codec=options.codec,
        shard_tokens=options.shard_tokens,
        engine=name,
        engine_version=f"{name} {version(name)}",
        compute_dtype=_compute_dtype(model, options),
        provenance={
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "eagle3data": version("eagle3data"),
        },
    )


def _compute_dtype(model: str, options: ExtractOptions) -> str:
    if options.compute_dtype == "auto":
        return checkpoint_dtype(model, options.revision)
    if options.compute_dtype not in COMPUTE_DTYPES:
        raise InputError(
            f"--compute-dtype {options.compute_dtype}: expected auto, {', '.join(COMPUTE_DTYPES)}."
        )
    return options.compute_dtype


def choose_engine(name: str) -> str:
    """The engine's name for `--engine`.

    Raises:
        InputError: an unknown name, or an engine that is not installed.
    """
    if name not in ENGINES:
        raise InputError(f"--engine {name}: this version has {', '.join(ENGINES)}.")
    if importlib.util.find_spec("transformers") is None:
        raise InputError(
            "the transformers engine is not installed: pip install 'eagle3data[transformers]'."
        )
    return "transformers"


def _missing_shards(root: Root, plan: Plan, wanted: tuple[int, int] | None) -> list[int]:
    first, stop = wanted or (0, plan.shards)
    if not 0 <= first < stop <= plan.shards:
        raise InputError(f"--shards {first}:{stop} is not within the plan's 0:{plan.shards}.")
    committed = set(layout.committed_shards(root))
    return [shard for shard in range(first, stop) if shard not in committed]


def _require_space(root: Root, plan: Plan, missing: list[int]) -> None:
    free = root.free_bytes()
    share = len(missing) / plan.shards
    needed = round(plan.sizes.stored_bytes(plan.manifest.storage.codec) * share * _SPACE_FACTOR)
    if free is not None and free < needed:
        raise SpaceError(
            f"{root.url} has {free / 1e6:,.0f} MB free; the {len(missing)} shards to write take "
            f"about {needed / 1e6:,.0f} MB. Nothing was extracted: free some space, choose another "
            "--out or a compressing --codec."
        )


def _load_engine(model: str, plan: Plan, options: ExtractOptions) -> Engine:
    from eagle3data.extractor.engines.transformers import TransformersEngine

    return TransformersEngine(
        model,
        layers=plan.manifest.layers,
        storage_dtype=StorageDtype(options.dtype),
        compute_dtype=plan.manifest.capture.dtype,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
    )


def _extract_shard(
    root: Root, plan: Plan, prompts: PromptsFile, engine: Engine, shard: int, on_tokens: OnTokens
) -> None:
    rows = {str(plan.table["sample_id"][row].as_py()): row for row in plan.rows_of(shard)}
    requests = [
        Request(sample_id=name, input_ids=list_values(prompts.table["input_ids"], row))
        for name, row in rows.items()
    ]
    writer = ShardWriter(root, plan.manifest, shard)
    outstanding = set(rows)
    for captured in engine.capture(requests):
        outstanding.discard(captured.sample_id)
        row = rows[captured.sample_id]
        sample = _sample(prompts.table, row, captured)
        try:
            writer.append(sample, int(plan.table["token_offset"][row].as_py()))
        except SampleError as error:
            record_failure(
                root, shard=shard, sample_id=error.sample_id, kind=error.kind, reason=str(error)
            )
        on_tokens(len(sample), shard)
    if outstanding:
        raise CorruptionError(
            "length_mismatch",
            f"the engine returned nothing for {len(outstanding)} of {len(rows)} requests",
            url=root.url,
            shard=shard,
            sample_id=min(outstanding),
        )
    writer.commit()


def _sample(table: pa.Table, row: int, captured: Captured) -> Sample:
    values: dict[str, Any] = {
        name: table[name][row].as_py() for name in ("source", "split", "source_extra")
    }
    return Sample(
        hidden_states=captured.hidden_states,
        input_ids=list_values(table["input_ids"], row),
        loss_mask=list_values(table["loss_mask"], row).astype(np.uint8),
        sample_id=captured.sample_id,
        source=values["source"],
        split=values["split"],
        source_extra=dict(values["source_extra"] or {}),
        witness_token=captured.witness_token,
        witness_logprob=captured.witness_logprob,
    )
