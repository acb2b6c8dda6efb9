"""The extraction on a Ray cluster: several engines, one data set, nodes that may die."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from eagle3data.extractor.replica import Share, SharedJob, environment, manifest_digest
from eagle3data.extractor.run import (
    ExtractOptions,
    ExtractReport,
    Job,
    OnStart,
    finish_job,
    prepare_job,
)
from eagle3data.extractor.worker import OnTokens
from eagle3data.schema.errors import ClusterError, InputError
from eagle3data.storage.claims import Claims
from eagle3data.storage.root import Root
from eagle3data.writers.shared_shards import OnWait, missing_shards


def extract_on_ray(
    prompts_path: str,
    model: str,
    url: str,
    options: ExtractOptions,
    *,
    replicas: int | None,
    on_start: OnStart,
    on_tokens: OnTokens,
    on_wait: OnWait,
    on_notice: Callable[[str], None],
) -> ExtractReport:
    """Like `extract`, with engines on the nodes of a Ray cluster.

    The cluster is the one that this process is connected to, or the one that Ray finds by
    `RAY_ADDRESS` or on this machine; where there is none, this machine alone becomes one.

    The data set holds the same samples at the same places, and each shard the states that one
    process would have written, to the engine's own rounding. A replica that dies is begun anew;
    what it had claimed is taken over at once.

    Args:
        prompts_path: what `prepare` wrote; only this machine has to see it.
        model: Hugging Face folder or id; a folder has to be on every node under the same path.
        url: root of the data set, which every node sees under the same URL.
        options: as in `extract`.
        replicas: engines at work; by default as many as the cluster's GPUs can hold, and one a
            node where it has none.
        on_start, on_tokens, on_wait: as in `extract`.
        on_notice: called with a line about a replica that died, or that finds no room.

    Returns:
        Counts as `extract` does; `written` are the shards committed meanwhile, by whomever.

    Raises:
        InputError: ray is not installed, a node does not see the set or the model, or has other
            versions; and what `extract` raises.
        ClusterError: no cluster at `RAY_ADDRESS`, too small for a replica, or all replicas died.
        MismatchError, SpaceError: as `extract`, also when it happens on a node.
    """
    if options.engine.endpoint is not None:
        raise InputError(
            "--endpoint uses a server that runs, --ray starts engines: leave one out. Several "
            "`extract --endpoint` share a data set without Ray."
        )
    if importlib.util.find_spec("ray") is None:
        raise InputError("--ray needs the package ray: pip install 'eagle3data[ray]'.")
    from eagle3data.extractor.crew import Crew, connected

    root = Root(url)
    with Claims(root) as claims:
        job = prepare_job(root, claims, prompts_path, model, options)
    on_start(job.tokens, len(job.missing))
    if job.missing:
        with connected(on_notice) as nodes:
            count, share = divide(nodes, replicas, options.engine.tensor_parallel_size)
            crew = Crew(
                _shared(root, job),
                share,
                on_tokens=on_tokens,
                on_wait=on_wait,
                on_notice=on_notice,
            )
            crew.run(min(count, len(job.missing)))
    written = len(job.missing) - len(missing_shards(root, job.missing))
    return finish_job(root, job, written)


def divide(
    nodes: Sequence[dict[str, float]], replicas: int | None, devices: int
) -> tuple[int, Share]:
    """How many replicas, and what each takes of its node.

    Args:
        nodes: resources of every node, as Ray names them.
        replicas: how many are asked for; None is as many as there is room for.
        devices: GPUs of one engine.

    Raises:
        ClusterError: there is no room for so many.
    """
    gpus = [int(node.get("GPU", 0)) for node in nodes]
    cpus = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if any(gpus):
        room = sum(count // devices for count in gpus)
        _require_room(replicas, room, f"{devices} GPUs of one node", f"GPUs: {gpus}")
        return replicas or room, Share(devices, 1)
    _require_room(replicas, sum(cpus), "a CPU", f"CPUs: {cpus}")
    count = replicas or len(cpus)
    beside = -(-count // len(cpus))
    return count, Share(0, max(1, min(cpus) // beside))


def _require_room(replicas: int | None, room: int, need: str, nodes: str) -> None:
    if replicas is not None and replicas < 1:
        raise InputError(f"--replicas {replicas}: expected at least 1.")
    if room < (replicas or 1):
        raise ClusterError(
            f"the Ray cluster has room for {room} replicas, {replicas or 1} are asked for: each "
            f"takes {need}, and its nodes have these {nodes}. Add nodes, or lower --replicas."
        )


def _shared(root: Root, job: Job) -> SharedJob:
    folder = Path(job.model)
    return SharedJob(
        url=root.path if root.is_local else root.url,
        manifest=manifest_digest(root),
        environment=environment(job.plan.manifest.capture.engine),
        job=replace(job, model=str(folder.resolve())) if folder.is_dir() else job,
    )
