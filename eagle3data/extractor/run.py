"""The extraction: shard after shard, each whole or not at all, continued where it stopped."""

from __future__ import annotations

import datetime
import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from eagle3data.extractor.engines.base import Engine
from eagle3data.extractor.plan import Plan, make_plan
from eagle3data.extractor.prompts import PromptsFile, read_prompts
from eagle3data.extractor.work import Work, require_appendable, settle_work
from eagle3data.extractor.worker import OnTokens, Worker
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.errors import (
    InputError,
    SpaceError,
)
from eagle3data.schema.layers import Numbering
from eagle3data.schema.manifest import StorageDtype
from eagle3data.schema.target import checkpoint_dtype
from eagle3data.storage import layout
from eagle3data.storage.claims import Claims
from eagle3data.storage.ledger import read_ledger
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import consolidate_index, create_data_set, require_place
from eagle3data.writers.shared_shards import OnWait, missing_shards

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
        append: let an existing set grow by these prompts, in new shards.
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
    append: bool = False
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
        repeated: prompts of an appended file that the set held already.
    """

    shards: int
    committed: int
    written: int
    tokens: int
    failed: int
    repeated: int


OnStart = Callable[[int, int], None]


def extract(
    prompts_path: str,
    model: str,
    url: str,
    options: ExtractOptions,
    *,
    on_start: OnStart,
    on_tokens: OnTokens,
    on_wait: OnWait,
) -> ExtractReport:
    """Run the target over the prompts and commit what is missing of the data set.

    Args:
        prompts_path: what `prepare` wrote.
        model: Hugging Face folder or id of the target.
        url: root of the data set; created, continued, or left alone when finished.
        options: see there.
        on_start: called once with the tokens to do and the shards to do.
        on_tokens: called with tokens done and the shard in hand after every sample.
        on_wait: called every few seconds with the shards that other workers still have, when
            nothing else is left to do.

    Raises:
        InputError, LayerError: arguments or files that can't be used.
        MismatchError: the place holds another data set.
        SpaceError: the disk can't hold it, or became full; what is committed stays.
    """
    prompts = read_prompts(prompts_path)
    root = Root(url)
    require_place(root)
    axis = _existing_axis(root, options)
    plan = plan_extraction(prompts, model, options, axis=axis)
    with Claims(root) as claims:
        if axis is None:
            create_data_set(root, plan.manifest, plan.shards)
        else:
            require_appendable(layout.read_manifest(root), plan.manifest)
        root.sweep()
        work = settle_work(root, claims, plan, append=options.append)
        wanted = _wanted_shards(work, options.shards)
        missing = missing_shards(root, wanted)
        if missing:
            _require_space(root, plan, work, missing)
        on_start(sum(map(work.tokens_of, missing)), len(missing))
        written = 0
        if missing:
            worker = Worker(root, plan, prompts, work, claims, on_tokens, on_wait)
            written = worker.run(wanted, partial(_load_engine, model, plan, options))
        consolidate_index(root)
    root.sweep()
    return ExtractReport(
        shards=len(work.shards),
        committed=len(set(layout.committed_shards(root)) & set(work.shards)),
        written=written,
        tokens=work.tokens,
        failed=len(read_ledger(root)),
        repeated=work.repeated,
    )


def _existing_axis(root: Root, options: ExtractOptions) -> TokenAxis | None:
    """The axis of the set that is appended to; None for a set with a plan of its own."""
    if not options.append:
        return None
    if not root.exists(layout.GROUP):
        raise InputError(f"--append: {root.url} holds no data set yet. Leave --append out.")
    return layout.read_manifest(root).storage.axis


def plan_extraction(
    prompts: PromptsFile, model: str, options: ExtractOptions, *, axis: TokenAxis | None = None
) -> Plan:
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
        axis=axis,
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


def _wanted_shards(work: Work, wanted: tuple[int, int] | None) -> list[int]:
    if wanted is None:
        return list(work.shards)
    first, stop = wanted
    end = max(work.shards) + 1
    if not 0 <= first < stop <= end:
        raise InputError(f"--shards {first}:{stop} is not within the plan's 0:{end}.")
    return [shard for shard in work.shards if first <= shard < stop]


def _require_space(root: Root, plan: Plan, work: Work, missing: list[int]) -> None:
    room = root.room()
    share = len(missing) / len(work.shards)
    needed = round(plan.sizes.stored_bytes(plan.manifest.storage.codec) * share * _SPACE_FACTOR)
    if room is not None and room[0] < needed:
        raise SpaceError(
            f"{root.url} has {room[0] / 1e6:,.0f} MB free; the {len(missing)} shards to write take "
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
