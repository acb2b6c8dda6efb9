"""What training shows of states that are a row off, beside what a server reports: one figure.

Takes a data set that is right, writes four copies of some of its samples whose rows are shifted (by
one in either direction; at every layer, or at the aux layers only), and trains a draft on each and
on the right one with the same settings. The trainer refuses the four, which is recorded, and is
then forced. A real vLLM says what each draft is worth.

    python -m benchmarks.shifted_training ./states --model MODEL --prompts questions.jsonl \\
        --out ./shifted --jobs 5 optimizer.learning_rate=2e-4 train.max_steps=2000 \\
        -- --max-new-tokens 256

Words of the form section.key=value are settings of every training; what follows `--` goes to
`eagle3data evaluate` (several --jobs on one GPU need `--engine-arg gpu_memory_utilization=0.15`).
Sets, runs and exports stay in --out, and a second run goes on from them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trainers import split_words
from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.schema.sample import Sample
from eagle3data.storage.root import Root
from eagle3data.writers.dataset_writer import DatasetWriter

REPORT, FIGURE = "shifted.json", "shifted.png"
_FORCED = "data.allow_misaligned=true"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A copy of the data set.

    Attributes:
        name: of its folder.
        title: in the figure.
        shift: row t holds the state of token t + shift.
        final: the final layer is shifted, too.
        color: in the figure.
    """

    name: str
    title: str
    shift: int = 0
    final: bool = False
    color: str


VARIANTS = (
    Variant(name="right", title="right", color="#1a6fb5"),
    Variant(name="all+1", title="all layers, +1", shift=1, final=True, color="#c23b22"),
    Variant(name="all-1", title="all layers, -1", shift=-1, final=True, color="#e58a2b"),
    Variant(name="aux+1", title="aux layers, +1", shift=1, color="#7b3fa0"),
    Variant(name="aux-1", title="aux layers, -1", shift=-1, color="#4f9d5b"),
)


def shifted(sample: Sample, variant: Variant, final: int) -> Sample:
    """The sample with row t holding the state of token t + shift, as an off-by-one copies it.

    Past the sample's ends its last (or first) row is repeated; ids, mask and witness stay.
    """
    rows = np.arange(len(sample)) + variant.shift
    rows = rows.clip(0, len(sample) - 1)
    states = {
        layer: values[rows] if variant.final or layer != final else values
        for layer, values in sample.hidden_states.items()
    }
    return replace(sample, hidden_states=states)


def write_copy(source: str, variant: Variant, url: str, samples: int | None) -> None:
    """Write a variant of a set's first samples; one that is there already is left."""
    if Root(url).exists("zarr.json"):
        return
    dataset = open_dataset(source)
    partial = f"{url}.partial"
    final = dataset.manifest.final_layer
    with DatasetWriter.create(partial, dataset.manifest) as writer:
        for sample in _first(dataset, samples):
            writer.append(shifted(sample, variant, final))
    Path(partial).rename(url)


def _first(dataset: Dataset, samples: int | None) -> Iterator[Sample]:
    for position in range(len(dataset) if samples is None else min(samples, len(dataset))):
        yield dataset[position]


class Program:
    """`eagle3data` commands of one variant, with their output in files beside its folder."""

    def __init__(self, out: Path, variant: Variant, arguments: argparse.Namespace) -> None:
        self.out, self.variant, self.arguments = out, variant, arguments
        self.states = str(out / f"states-{variant.name}")
        self.run_folder = out / f"run-{variant.name}"
        self.export_folder = out / f"draft-{variant.name}"

    def measure(self) -> dict[str, Any]:
        """Train, export, evaluate; what came of it."""
        refusal = self._refusal()
        self._run("train", *self._training(self.run_folder), *self.arguments.settings, _FORCED)
        if not self.export_folder.exists():
            self._run("export", self.run_folder, "--format", "vllm", "--out", self.export_folder)
        return {
            "name": self.variant.name,
            "title": self.variant.title,
            "refusal": refusal,
            **_curves(self.run_folder),
            "server": self._acceptance(),
        }

    def _refusal(self) -> str | None:
        """What the trainer says of the set when it isn't forced; None where it starts."""
        with tempfile.TemporaryDirectory() as place:
            words = _command(
                "train", *self._training(Path(place) / "run"), *self.arguments.settings,
                "train.max_steps=1", "data.eval_split=null",
            )  # fmt: skip
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        if "data.allow_misaligned" not in done.stderr:
            raise SystemExit(f"{self.variant.name}: not refused but failed:\n{done.stderr}")
        return done.stderr[done.stderr.index("error: ") :].strip()

    def _acceptance(self) -> dict[str, Any] | None:
        if self.arguments.prompts is None:
            return None
        file = self.out / f"server-{self.variant.name}.json"
        if not file.exists():
            prompts = [word for one in self.arguments.prompts for word in ("--prompts", one)]
            self._run(
                "evaluate", self.export_folder, "--model", self.arguments.model, *prompts,
                "--no-compare", "--out", file, *self.arguments.evaluate,
            )  # fmt: skip
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def _training(self, folder: Path) -> tuple[object, ...]:
        return (self.states, "--model", self.arguments.model, "--out", folder)

    def _run(self, *words: object) -> None:
        log = self.out / f"{words[0]}-{self.variant.name}.log"
        print(f"{self.variant.name}: {words[0]} ({log})", flush=True)
        with log.open("w") as file:
            done = subprocess.run(
                _command(*words), stdout=file, stderr=subprocess.STDOUT, check=False
            )
        if done.returncode:
            raise SystemExit(f"{log} ended with exit code {done.returncode}:\n{_tail(log)}")


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "eagle3data.cli.main", *map(str, words)]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-5:])


def _curves(run: Path) -> dict[str, Any]:
    """Training's own numbers, a value a step; and the held-out ones where a split is held out."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = ("step", "loss", "accuracy", "simulated_acceptance_length")
    return {
        kind: {name: [one[name] for one in records if one["kind"] == kind] for name in names}
        for kind in ("train", "eval")
    }


def draw(report: dict[str, Any], file: Path) -> None:
    """Training's curves side by side, and the server's acceptance length at the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.6), layout="constrained")
    panels = figure.subplots(1, 4)
    titles = ("loss", "accuracy", "simulated_acceptance_length")
    for axes, name in zip(panels, titles, strict=False):
        for found in report["variants"]:
            kind = "eval" if found["eval"]["step"] else "train"
            curve = found[kind]
            values = curve[name] if kind == "eval" else _smooth(curve[name])
            axes.plot(curve["step"], values, color=_color(found), label=found["title"])
        axes.set_title(f"{name.replace('_', ' ')} in training", loc="left", fontsize=10)
        axes.set_xlabel("step", fontsize=8)
    panels[0].legend(fontsize=8, frameon=False)
    _draw_server(panels[3], report["variants"])
    for axes in panels:
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(file, dpi=150)


def _draw_server(axes: Any, variants: Sequence[dict[str, Any]]) -> None:
    measured = [found for found in variants if found["server"]]
    lengths = [found["server"]["acceptance_length"] or 1.0 for found in measured]
    titles = [found["title"] + (" (refused)" if found["refusal"] else "") for found in measured]
    colors = [_color(found) for found in measured]
    drawn = axes.barh(titles, [length - 1 for length in lengths], left=1, color=colors)
    axes.bar_label(drawn, labels=[f"{length:.2f}" for length in lengths], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=1)
    axes.margins(x=0.2)
    axes.set_title("acceptance length in vLLM", loc="left", fontsize=10)


def _color(found: dict[str, Any]) -> str:
    return next(variant.color for variant in VARIANTS if variant.name == found["name"])


def _smooth(values: Sequence[float]) -> list[float]:
    """Means over a twentieth of the steps before each: a step's own numbers jump."""
    width = max(1, len(values) // 20)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return [float(one) for one in (sums[ends] - sums[starts]) / (ends - starts)]


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line; what follows `--` is kept for `evaluate`."""
    own, evaluate = split_words(words)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="a data set that is right")
    parser.add_argument("settings", nargs="*", help="section.key=value of every training")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", action="append", help="none: no server is asked")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, help="only so many, the first ones")
    parser.add_argument("--jobs", type=int, default=1, help="variants at a time")
    found = parser.parse_intermixed_args(own)
    found.evaluate = evaluate
    return found


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse(sys.argv[1:] if words is None else words)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    programs = [Program(out, variant, arguments) for variant in VARIANTS]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn) as copying:
        copies = [
            copying.submit(write_copy, arguments.url, one.variant, one.states, arguments.samples)
            for one in programs
        ]
        for copy in copies:
            copy.result()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // arguments.jobs)))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        measured = list(pool.map(Program.measure, programs))
    report = {
        "data_set": arguments.url,
        "model": arguments.model,
        "samples": arguments.samples,
        "settings": arguments.settings,
        "evaluate": arguments.evaluate,
        "prompts": arguments.prompts,
        "variants": measured,
    }
    (out / REPORT).write_text(json.dumps(report, indent=1))
    draw(report, out / FIGURE)
    for found in measured:
        print(_line(found))


def _line(found: dict[str, Any]) -> str:
    curve = found["eval"] if found["eval"]["step"] else found["train"]
    server = found["server"]
    served = "not asked" if server is None else f"{server['acceptance_length'] or 1.0:.2f}"
    return (
        f"{found['title']:16} loss {curve['loss'][-1]:.3f}, accuracy {curve['accuracy'][-1]:.3f}, "
        f"simulated {curve['simulated_acceptance_length'][-1]:.2f}, vLLM {served}, "
        + ("refused unless forced" if found["refusal"] else "started without a word")
    )


if __name__ == "__main__":
    main()
