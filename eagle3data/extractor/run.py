"""The extraction: shard after shard, each whole or not at all, continued where it stopped."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

from eagle3data.extractor.alignment import AlignmentWatch
from eagle3data.extractor.engines.base import Engine
from eagle3data.extractor.engines.choice import (
    EngineOptions,
    choose_engine,
    engine_version,
    load_engine,
    settle_version,
)
from eagle3data.extractor.estimate import room_for
from eagle3data.extractor.gpu_memory import wait_for_gpu
from eagle3data.extractor.plan import Plan, make_plan
from eagle3data.extractor.preflight import OnNotice, Preflight
from eagle3data.extractor.processes import marked_run, own_pids
from eagle3data.extractor.prompts import PromptsFile, read_prompts
from eagle3data.extractor.work import Work, require_appendable, settle_work
from eagle3data.extractor.worker import IMPORT_QUEUE_BYTES, QUEUE_BYTES, OnTokens, Worker
from eagle3data.readers.card import write_card
from eagle3data.readers.dataset import open_dataset
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.errors import (
    InputError,
    SpaceError,
)
from eagle3data.schema.layers import NormState, Numbering
from eagle3data.schema.target import checkpoint_dtype
from eagle3data.storage import layout
from eagle3data.storage.claims import Claims
from eagle3data.storage.ledger import read_ledger
from eagle3data.storage.model_weights import load_head
from eagle3data.storage.root import Root
from eagle3data.writers.data_set import consolidate_index, create_data_set, require_place
from eagle3data.writers.shared_shards import OnWait, missing_shards

COMPUTE_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """What a person chooses about an extraction.

    Attributes:
        layers: `auto` or ids separated by commas.
        numbering: whose ids they are, where not canonical.
        engine: which engine, and how it is loaded.
        dtype: storage dtype, `float16` or `bfloat16`.
        codec: storage profile: `none`, `lz4` or `pcodec`.
        compute_dtype: dtype the model runs in; `auto` is the checkpoint's own.
        shard_tokens: S; chosen from the prompts by default.
        shards: half-open range of shards to do, `(first, stop)`; all by default.
        append: let an existing set grow by these prompts, in new shards.
        norm_state: of the final layer; engines give it before the norm.
        provenance: more to be written down of where the states come from.
    """

    layers: str = "auto"
    numbering: Numbering | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    dtype: str = "float16"
    codec: str = "none"
    compute_dtype: str = "auto"
    shard_tokens: int | None = None
    shards: tuple[int, int] | None = None
    append: bool = False
    norm_state: NormState = NormState.PRE
    provenance: Mapping[str, str] = field(default_factory=dict)


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
_RELEASE_SECONDS = 30.0
"""For so long the driver may take to give back what ended processes held."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """An extraction whose data set is there: what a process needs to do a part of it.

    Attributes:
        model: Hugging Face folder or id of the target.
        options: as in `extract`.
        prompts: token ids and masks.
        plan: which sample goes where.
        work: what there is to do, by shard.
        wanted: shards to be committed.
        missing: those of them that were not when the job was prepared.
    """

    model: str
    options: ExtractOptions
    prompts: PromptsFile
    plan: Plan
    work: Work
    wanted: list[int]
    missing: list[int]

    @property
    def tokens(self) -> int:
        """Tokens of the shards that were missing."""
        return sum(map(self.work.tokens_of, self.missing))


def extract(
    prompts_path: str,
    model: str,
    url: str,
    options: ExtractOptions,
    *,
    on_start: OnStart,
    on_tokens: OnTokens,
    on_wait: OnWait,
    on_notice: OnNotice,
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
        on_notice: called with a line on what deserves a look, and does not stop the run.

    Raises:
        InputError, LayerError: arguments or files that can't be used.
        MismatchError: the place holds another data set.
        SpaceError: the disk can't hold it, or became full; what is committed stays.
    """
    root = Root(url)
    with Claims(root) as claims:
        job = prepare_job(root, claims, prompts_path, model, options)
        on_start(job.tokens, len(job.missing))
        written = 0
        if job.missing:
            written = do_job(root, claims, job, on_tokens, on_wait, on_notice)
    return finish_job(root, job, written)


def prepare_job(
    root: Root, claims: Claims, prompts_path: str, model: str, options: ExtractOptions
) -> Job:
    """Plan the extraction and create its data set, or find what is missing of the one there.

    Raises:
        As `extract` before a model is loaded.
    """
    prompts = read_prompts(prompts_path)
    require_place(root)
    axis = _existing_axis(root, options)
    plan = plan_extraction(prompts, model, options, axis=axis)
    if axis is None:
        if not root.exists(layout.GROUP):
            # Before anything is written: a server that won't do leaves no data set behind.
            plan = settle_version(plan, options.engine)
        create_data_set(root, plan.manifest, plan.shards)
    else:
        require_appendable(layout.read_manifest(root), plan.manifest)
    root.sweep()
    work = settle_work(root, claims, plan, append=options.append)
    wanted = _wanted_shards(work, options.shards)
    missing = missing_shards(root, wanted)
    if missing:
        _require_space(root, plan, work, missing)
    return Job(
        model=model,
        options=options,
        prompts=prompts,
        plan=plan,
        work=work,
        wanted=wanted,
        missing=missing,
    )


def do_job(
    root: Root,
    claims: Claims,
    job: Job,
    on_tokens: OnTokens,
    on_wait: OnWait,
    on_notice: OnNotice,
) -> int:
    """Work until every wanted shard is committed, by whomever; how many this process did.

    Whatever the engine has started is gone when this returns, also with an error; what of it
    still holds GPU memory is told to `on_notice`.
    """
    others, started = own_pids(), set[int]()

    def load() -> Engine:
        engine = load_engine(job.model, job.plan, job.options.engine)
        started.update(own_pids() - others)
        return engine

    head = partial(load_head, job.model, job.options.engine.revision)
    manifest, samples = job.plan.manifest, job.plan.table.num_rows
    is_import = job.options.engine.imported is not None
    worker = Worker(
        root,
        job.plan,
        job.prompts,
        job.work,
        claims,
        Preflight(manifest, on_notice),
        None if is_import else AlignmentWatch(manifest, samples, root.url, head, on_notice),
        on_tokens,
        on_wait,
        IMPORT_QUEUE_BYTES if is_import else QUEUE_BYTES,
    )
    try:
        with marked_run():
            return worker.run(job.wanted, load)
    finally:
        if started:
            _tell_held(started, on_notice)


def _tell_held(started: set[int], on_notice: OnNotice) -> None:
    report = wait_for_gpu(started, timeout=_RELEASE_SECONDS)
    for process in report.holders:
        if process.pid not in started:
            continue
        on_notice(
            f"process {process.pid} ({process.name}) of this extraction still holds GPU memory: "
            f"`eagle3data release --pid {process.pid}` ends it."
        )


def finish_job(root: Root, job: Job, written: int) -> ExtractReport:
    """Gather the index, clean up, and say how things stand."""
    consolidate_index(root)
    write_card(open_dataset(root.url))
    root.sweep()
    return ExtractReport(
        shards=len(job.work.shards),
        committed=len(set(layout.committed_shards(root)) & set(job.work.shards)),
        written=written,
        tokens=job.work.tokens,
        failed=len(read_ledger(root)),
        repeated=job.work.repeated,
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
        revision=options.engine.revision,
        layers=options.layers,
        numbering=options.numbering,
        dtype=options.dtype,
        codec=options.codec,
        shard_tokens=options.shard_tokens,
        axis=axis,
        engine=name,
        engine_version=engine_version(name),
        compute_dtype=_compute_dtype(model, options),
        norm_state=options.norm_state,
        provenance={
            **options.provenance,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "eagle3data": version("eagle3data"),
        },
    )


def _compute_dtype(model: str, options: ExtractOptions) -> str:
    if options.compute_dtype == "auto":
        return checkpoint_dtype(model, options.engine.revision)
    if options.compute_dtype not in COMPUTE_DTYPES:
        raise InputError(
            f"--compute-dtype {options.compute_dtype}: expected auto, {', '.join(COMPUTE_DTYPES)}."
        )
    return options.compute_dtype


def _wanted_shards(work: Work, wanted: tuple[int, int] | None) -> list[int]:
    if wanted is None:
        return list(work.shards)
    first, stop = wanted
    end = max(work.shards) + 1
    if not 0 <= first < stop <= end:
        raise InputError(f"--shards {first}:{stop} is not within the plan's 0:{end}.")
    return [shard for shard in work.shards if first <= shard < stop]


def _require_space(root: Root, plan: Plan, work: Work, missing: list[int]) -> None:
    lengths = [work.lengths[place.row] for shard in missing for place in work.shards[shard]]
    room = room_for(root, plan.manifest, lengths)
    if not room.fits:
        raise SpaceError(
            f"{root.url} has {(room.free or 0) / 1e6:,.0f} MB free; the {len(missing)} shards to "
            f"write take about {room.needed / 1e6:,.0f} MB, and {room.reserve / 1e6:,.0f} MB are "
            "left to others. Nothing was extracted: free some space, choose another --out or a "
            "compressing --codec."
        )
