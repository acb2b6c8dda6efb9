"""Extraction and import on a real local Ray cluster: who works where changes nothing of the set."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from eagle3data import open_dataset
from eagle3data.extractor.prompts import prompts_metadata, prompts_writer, read_prompts
from eagle3data.schema.index import PROMPTS_SCHEMA
from eagle3data.storage.claims import list_claims, read_claim
from eagle3data.storage.layout import committed_shards
from eagle3data.storage.ledger import read_ledger
from eagle3data.storage.root import Root
from tests.interop.layouts import LENGTHS, Wanted, bits, write_arrow, write_speculators
from tests.killing import start
from tests.support import eagle3data, same_sample

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

QUIET = {"include_dashboard": False, "object_store_memory": 80_000_000}
SETTINGS = ("--engine", "transformers", "--shard-tokens", "384")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # A product's last bits depend on how many threads share it.
        patch.setenv("OMP_NUM_THREADS", "1")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **QUIET})
        for _ in range(2):
            made.add_node(num_cpus=1, **QUIET)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def some_prompts(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first twelve."""
    read = read_prompts(prompts)
    out = tmp_path_factory.mktemp("some") / "some.arrow"
    with prompts_writer(out, prompts_metadata(read.model, read.tokenizer, None)) as writer:
        writer.write_table(read.table.slice(0, 12).cast(PROMPTS_SCHEMA))
    return out


def _start(prompts: Path, smollm2: Path, url: object, *more: object) -> subprocess.Popen[str]:
    words = ["extract", prompts, "--model", smollm2, "--out", url, *SETTINGS, "--ray", *more]
    return start(words)


def _workers(url: Path) -> set[int]:
    """Processes that hold a shard; looked up now and then, so that they get the cores."""
    time.sleep(0.05)
    root = Root(str(url))
    names = [(name, attempt) for name, attempt in list_claims(root).items() if name.isdigit()]
    claims = [read_claim(root, *name) for name in names]
    return {claim.owner.pid for claim in claims if claim and claim.owner}


def _node_of(cluster: Any, workers: set[int]) -> Any:
    """A node, not the head, that one of these processes runs on."""
    raylets = {psutil.Process(pid).ppid() for pid in workers}
    nodes = [node for node in cluster.worker_nodes if _raylet(node) in raylets]
    return nodes[0]


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _are_gone(pids: set[int]) -> bool:
    _, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 10)
    return not alive


def test_a_node_killed_half_way(
    cluster: Any, some_prompts: Path, smollm2: Path, tmp_path: Path
) -> None:
    one, url = tmp_path / "one", tmp_path / "set"
    process = _start(some_prompts, smollm2, url, "--replicas", 2)
    workers: set[int] = set()
    while process.poll() is None and not (len(workers) == 2 and committed_shards(Root(str(url)))):
        workers = _workers(url)
    node = _node_of(cluster, workers)
    [survivor] = [pid for pid in workers if psutil.Process(pid).ppid() != _raylet(node)]
    # It waits, or it would have done everything before the new replica is there.
    os.kill(survivor, signal.SIGSTOP)
    cluster.remove_node(node, allow_graceful=False)
    committed = len(committed_shards(Root(str(url))))
    while process.poll() is None and _workers(url) <= workers:
        pass
    os.kill(survivor, signal.SIGCONT)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    print(f"killed with {committed} shards committed\n{stdout}{stderr}")
    assert "was lost and is begun anew" in stderr
    tokens = open_dataset(str(url)).tokens
    assert f"{tokens:,} of {tokens:,} tokens" in stderr
    assert _are_gone(workers)
    done = eagle3data("extract", some_prompts, "--model", smollm2, "--out", one, *SETTINGS)
    assert done.returncode == 0, done.stderr
    there, here = open_dataset(str(url)), open_dataset(str(one))
    assert there.index.equals(here.index)
    assert all(same_sample(there[row], here[row]) for row in range(len(here)))
    cluster.add_node(num_cpus=1, **QUIET)


def test_a_replica_killed_again_and_again(
    cluster: Any, some_prompts: Path, smollm2: Path, tmp_path: Path
) -> None:
    url = tmp_path / "set"
    process = _start(some_prompts, smollm2, url, "--replicas", 1)
    killed: set[int] = set()
    while process.poll() is None:
        for pid in _workers(url) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    _, stderr = process.communicate()
    assert process.returncode == 2, stderr
    assert len(killed) == 3
    assert "every replica was lost 3 times" in stderr
    assert "Traceback" not in stderr


def test_ctrl_c_leaves_nothing(
    cluster: Any, some_prompts: Path, smollm2: Path, tmp_path: Path
) -> None:
    url = tmp_path / "set"
    process = _start(some_prompts, smollm2, url, "--replicas", 1)
    workers: set[int] = set()
    while process.poll() is None and not (workers and committed_shards(Root(str(url)))):
        workers = _workers(url)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert "Run the same command again to continue" in stderr
    assert _are_gone(workers)
    assert list_claims(Root(str(url))) == {}
    assert list((url / ".tmp").glob("*/*")) == []


def test_what_a_replica_raises_is_what_extract_raises(
    cluster: Any, some_prompts: Path, smollm2: Path
) -> None:
    """A set in the driver's memory stands for a folder that the nodes don't see."""
    process = _start(some_prompts, smollm2, "memory://not-shared")
    stdout, stderr = process.communicate()
    assert process.returncode == 2
    assert "\nerror: memory://not-shared is not shared by the nodes" in stderr
    assert "Traceback" not in stderr
    assert stdout == ""


def test_import(cluster: Any, smollm2: Path, tmp_path: Path) -> None:
    """Every sample comes in as it is stored, whoever reads it; a bad one is a row of the ledger."""
    wanted = [Wanted(row, torch.float16, hidden=576) for row in range(len(LENGTHS))]
    wanted[4].states[-1, 2, 7] = torch.nan
    folder, url = tmp_path / "source", tmp_path / "set"
    write_arrow(folder, wanted)
    write_speculators(folder, wanted)
    words = ["import", folder, "--model", smollm2, "--layers", "2,15,27,30", "--out", url]
    process = start([*words, "--shard-tokens", 16, "--no-validate", "--ray", "--replicas", 2])
    _, stderr = process.communicate()
    assert process.returncode == 1, stderr
    [row] = read_ledger(Root(str(url)))
    assert (row["kind"], "layer 27" in row["reason"]) == ("nonfinite", True)
    dataset = open_dataset(str(url))
    assert len(committed_shards(Root(str(url)))) > 1
    found = {sample.source: sample for sample in (dataset[at] for at in range(len(dataset)))}
    assert sorted(found) == sorted(f"hs_{at}.safetensors" for at in range(len(LENGTHS)) if at != 4)
    for at, one in enumerate(wanted):
        if at != 4:
            sample = found[f"hs_{at}.safetensors"]
            assert sample.input_ids.tolist() == one.ids.tolist()
            for slot, layer in enumerate((2, 15, 27, 30)):
                assert (sample.hidden_states[layer] == bits(one.states[:, slot])).all()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:10001"])
def test_no_cluster_where_one_is_named(
    some_prompts: Path,
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    process = _start(some_prompts, smollm2, tmp_path / "set")
    _, stderr = process.communicate()
    assert process.returncode == 2
    assert f"no Ray cluster answers at RAY_ADDRESS={address}" in stderr
