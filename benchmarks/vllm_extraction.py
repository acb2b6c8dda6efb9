"""vLLM with its states written against the same engine with its states thrown away.

    python -m benchmarks.vllm_extraction --tokenizer MODEL --folder TMPFS [--disk FOLDER]

The model is of random weights and of the shape asked for, so no checkpoint is needed; MODEL gives
the tokenizer only. Both cases run the same prompts on the same loaded engine, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from eagle3data.bench.turns import Case, Timing, take_turns
from eagle3data.cli.engine_args import engine_arguments
from eagle3data.extractor.alignment import AlignmentWatch
from eagle3data.extractor.engines.base import Captured, CaptureSettings, Engine, Request
from eagle3data.extractor.engines.choice import EngineOptions, load_engine
from eagle3data.extractor.engines.vllm import VllmEngine
from eagle3data.extractor.preflight import Preflight
from eagle3data.extractor.prepare import prepare
from eagle3data.extractor.prompts import PromptsFile, read_prompts
from eagle3data.extractor.run import ExtractOptions, Job, finish_job, plan_extraction, prepare_job
from eagle3data.extractor.worker import Worker
from eagle3data.schema.index import list_values
from eagle3data.schema.statistics import statistics_of_rows
from eagle3data.storage.claims import Claims
from eagle3data.storage.model_weights import load_head
from eagle3data.storage.root import Root

PHASES: list[list[float]] = []
"""Of each extraction, the seconds of its preparation, its work and its end."""
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


class HeldEngine:
    """An engine that several extractions use one after another."""

    name = "vllm"

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self.version, self.compute_dtype = engine.version, engine.compute_dtype
        self.switches = engine.switches

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        return self._engine.capture(groups)

    def close(self) -> None:
        """Its owner ends it."""


class ReplayEngine:
    """States that are there already, as fast as they are taken: what writing alone can do."""

    name = "vllm"
    version, compute_dtype = "replayed", "bfloat16"

    def __init__(self, asked: CaptureSettings) -> None:
        self.switches: dict[str, str] = {}
        shape = (len(asked.layers), asked.longest, asked.hidden_size)
        rows = np.random.default_rng(0).standard_normal(shape, np.float32)
        self._norms, self._largest = np.linalg.norm(rows, axis=-1), np.abs(rows).max(axis=-1)
        self._states = rows.astype(np.float16)
        self._asked = asked

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        for group in groups:
            for request in group or ():
                yield self._captured(request, len(request.input_ids))

    def close(self) -> None:
        """Used again."""

    def _captured(self, request: Request, tokens: int) -> Captured:
        statistics = {
            layer: statistics_of_rows(norms[:tokens], largest[:tokens], self._asked.hidden_size)
            for layer, norms, largest in zip(
                self._asked.layers, self._norms, self._largest, strict=True
            )
        }
        return Captured(
            request=request,
            hidden_states=dict(zip(self._asked.layers, self._states[:, :tokens], strict=True)),
            witness_token=0,
            witness_logprob=0.0,
            statistics={layer: one for layer, one in statistics.items() if one is not None},
        )


def main() -> None:
    options = _arguments()
    work = Path(tempfile.mkdtemp(prefix="eagle3data-bench-", dir=options.folder))
    try:
        model = _model(options, work / "model")
        prompts = _prompts(options, work, model)
        chosen = ExtractOptions(
            engine=EngineOptions(
                engine="vllm",
                tensor_parallel_size=options.tensor_parallel_size,
                arguments={"load_format": "dummy", **engine_arguments(options.engine_arg)},
            ),
            layers=options.capture,
        )
        plan = plan_extraction(read_prompts(prompts), str(model), chosen)
        engine = load_engine(str(model), plan, chosen.engine)
        if not isinstance(engine, VllmEngine):
            raise TypeError(f"expected a vLLM engine, got {engine.name}")
        try:
            extract = partial(_extract, prompts, str(model), chosen)
            replayed = ReplayEngine(engine.asked) if options.replay else None
            _compare(options, work, engine, replayed, extract)
        finally:
            engine.close()
    finally:
        shutil.rmtree(work)


def _compare(
    options: argparse.Namespace,
    work: Path,
    engine: VllmEngine,
    replayed: ReplayEngine | None,
    extract: Callable[[Engine, Path], None],
) -> None:
    held = HeldEngine(engine)
    prompts = read_prompts(work / "prompts.arrow")
    tokens = int(prompts.lengths.sum())
    memory: list[int] = []
    kept = work / "set"

    def remove(path: Path) -> None:
        memory.append(_resident_bytes())
        shutil.rmtree(path, ignore_errors=True)

    cases = [
        Case(name="thrown away", run=partial(_throw_away, engine, prompts), nbytes=tokens),
        Case(
            name="written, memory",
            run=partial(extract, held, kept),
            after=partial(remove, kept),
            nbytes=tokens,
        ),
    ]
    if replayed is not None:
        cases.append(
            Case(
                name="writing alone, memory",
                run=partial(extract, replayed, kept),
                after=partial(remove, kept),
                nbytes=tokens,
            )
        )
    if options.disk:
        slow = Path(options.disk) / "eagle3data-bench-set"
        raw = Path(options.disk) / "eagle3data-bench-raw"
        nbytes = tokens * engine_row_bytes(engine)
        cases += [
            Case(
                name="written, disk",
                run=partial(extract, held, slow),
                after=partial(remove, slow),
                nbytes=tokens,
            ),
            Case(
                name="as many bytes, raw",
                run=partial(_write_raw, raw, nbytes),
                nbytes=tokens,
                after=partial(raw.unlink, missing_ok=True),
            ),
        ]
    for case in cases:
        case.before()
        case.run()  # the first run of each is slower: memory is touched for the first time
        case.after()
    memory.clear()
    timings = take_turns(cases, options.rounds)
    _show(options, timings, engine_row_bytes(engine), memory)


def _extract(prompts: Path, model: str, chosen: ExtractOptions, engine: Engine, url: Path) -> None:
    root = Root(str(url))
    with Claims(root) as claims:
        phases = [time.perf_counter()]
        job = prepare_job(root, claims, str(prompts), model, chosen)
        phases.append(time.perf_counter())
        manifest, samples = job.plan.manifest, job.plan.table.num_rows
        worker = Worker(
            root,
            job.plan,
            job.prompts,
            job.work,
            claims,
            Preflight(manifest, _unheard),
            # Random weights lie in no file, so the witness can't be checked.
            AlignmentWatch(manifest, samples, root.url, partial(load_head, model), _unheard),
            _unheard,
            _unheard,
        )
        written = worker.run(job.wanted, lambda: engine)
        phases.append(time.perf_counter())
    _require_whole(job, finish_job(root, job, written).committed)
    phases.append(time.perf_counter())
    PHASES.append([after - before for before, after in itertools.pairwise(phases)])


def _require_whole(job: Job, committed: int) -> None:
    if committed != len(job.work.shards):
        raise RuntimeError(f"{committed} of {len(job.work.shards)} shards were committed")


def _throw_away(engine: VllmEngine, prompts: PromptsFile) -> None:
    """The same requests, without the parameters that tell the connector to keep their states."""
    from vllm import SamplingParams, TokensPrompt

    llm = engine.llm_engine
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=1, detokenize=False)
    for row in range(len(prompts)):
        ids = list_values(prompts.table["input_ids"], row).tolist()
        llm.add_request(f"thrown-{row}", TokensPrompt(prompt_token_ids=ids), params)
    while llm.has_unfinished_requests():
        llm.step()


def _write_raw(path: Path, nbytes: int) -> None:
    piece = np.random.default_rng(0).bytes(64 << 20)
    with path.open("wb", buffering=0) as file:
        left = nbytes
        while left > 0:
            left -= file.write(piece[: min(left, len(piece))])
        os.fsync(file.fileno())


def _show(
    options: argparse.Namespace, timings: list[Timing], row_bytes: int, memory: list[int]
) -> None:
    table = Table(box=None, header_style="bold")
    for name in ("states", "tokens/s", "GB/s", "slowest to fastest round", "of thrown away"):
        table.add_column(name, justify="left" if name == "states" else "right")
    # Each round's own ratio: what the machine did to one it did to the other.
    for timing in timings:
        speeds = [timing.case.nbytes / seconds for seconds in timing.seconds]
        ratios = [
            base / seconds for base, seconds in zip(timings[0].seconds, timing.seconds, strict=True)
        ]
        table.add_row(
            timing.case.name,
            f"{timing.speed:,.0f}",
            f"{timing.speed * row_bytes / 1e9:.2f}",
            f"{min(speeds):,.0f} to {max(speeds):,.0f}",
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        )
    console = Console(width=120)
    console.print(table)
    if memory:
        console.print(
            f"resident after each extraction, all processes: {min(memory) / 1e9:.2f} to "
            f"{max(memory) / 1e9:.2f} GB; first {memory[0] / 1e9:.2f}, last {memory[-1] / 1e9:.2f}"
        )
    if options.json:
        found = {
            "seconds": {timing.case.name: timing.seconds for timing in timings},
            "tokens": timings[0].case.nbytes,
            "row_bytes": row_bytes,
            "resident_bytes": memory,
            "phases": PHASES,
        }
        Path(options.json).write_text(json.dumps(found, indent=1))


def engine_row_bytes(engine: VllmEngine) -> int:
    """Bytes of one token's states."""
    return len(engine.asked.layers) * engine.asked.hidden_size * 2


def _resident_bytes() -> int:
    """Memory of this process and the engine's, what they share counted once."""
    process = psutil.Process()
    everyone = [process, *process.children(recursive=True)]
    return sum(one.memory_full_info().pss for one in everyone)


def _model(options: argparse.Namespace, folder: Path) -> Path:
    folder.mkdir()
    source = Path(options.tokenizer)
    for name in _TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    config = json.loads((source / "config.json").read_text())
    for name in ("head_dim", "quantization_config"):
        config.pop(name, None)
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": options.hidden,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.hidden // 128 or 1,
        "num_key_value_heads": max(1, options.hidden // 1024),
        "intermediate_size": options.hidden * 5 // 2,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "max_position_embeddings": 32_768,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _prompts(options: argparse.Namespace, work: Path, model: Path) -> Path:
    rng = np.random.default_rng(0)
    source = work / "prompts.jsonl"
    with source.open("w") as file:
        for _ in range(options.prompts):
            length = int(rng.integers(options.shortest, options.longest + 1))
            ids = rng.integers(10, 40_000, length).tolist()
            file.write(json.dumps({"input_ids": ids, "loss_mask": [1] * length}) + "\n")
    out = work / "prompts.arrow"
    prepare([str(source)], str(model), out)
    return out


def _unheard(*_: Any) -> None:
    """Nobody looks at the progress."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True, help="model folder")
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--disk", help="a folder on a disk, for two cases more")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--capture", default="auto", help="layer ids")
    parser.add_argument("--prompts", type=int, default=350)
    parser.add_argument("--shortest", type=int, default=1000)
    parser.add_argument("--longest", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--engine-arg", action="append")
    parser.add_argument("--replay", action="store_true", help="writing alone, for comparison")
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
