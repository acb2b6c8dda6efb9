"""`eagle3data import` against a plain copy of the same files: bytes a second, and memory.

    python -m benchmarks.importing FOLDER --model MODEL [--layout speculators] [--bytes 3000000000]

The source is written by `export-dataset`, with states of hidden 4096 and samples of 200 to 4,000
tokens. Both begin with files that lie in the page cache and end with files on the disk of FOLDER;
the import is a whole process, from its start to its end, with its modules compiled as those of an
installed package are. A third of the samples is taken in too, which shows that memory doesn't grow
with their number, and, by the difference, the speed without the start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.writers.dataset_writer import DatasetWriter

HIDDEN, VOCABULARY = 4096, 49_152
LAYERS = "2,15,27,30"
SHORTEST, LONGEST = 200, 4000


def main() -> None:
    """Write the sources, take turns, print medians and their spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="for its tokenizer and config")
    parser.add_argument("--layout", choices=("speculators", "specforge"), default="speculators")
    parser.add_argument("--bytes", type=int, default=3_000_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        model = _widened(options.model, place / "model")
        sizes = {"a third": options.bytes // 3, "all": options.bytes}
        sources = {
            name: _source(place, name, n, model, options.layout) for name, n in sizes.items()
        }
        _take_turns(sources, place, model, options)
    finally:
        shutil.rmtree(place)


def _widened(model: Path, folder: Path) -> Path:
    """A folder with the model's tokenizer, a wider config and the weights an export asks for."""
    folder.mkdir()
    for path in model.iterdir():
        if path.suffix in {".json", ".jinja", ".txt", ".model"}:
            shutil.copy(path, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(hidden_size=HIDDEN, num_attention_heads=64, num_key_value_heads=8)
    (folder / "config.json").write_text(json.dumps(config))
    # SpecForge's final state is after the norm, and the norm comes with the head, tied here.
    weights = {
        "model.norm.weight": np.ones(HIDDEN, np.float16),
        "model.embed_tokens.weight": np.zeros((VOCABULARY, HIDDEN), np.float16),
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def _source(place: Path, name: str, nbytes: int, model: Path, layout: str) -> Path:
    """States in another project's layout."""
    own, out = place / "own", place / f"source {name}"
    manifest = Manifest.for_model(str(model), layers=LAYERS)
    rng = np.random.default_rng(0)
    # Each sample has rows of its own, from one pool: the numbers don't matter, copying them does.
    pool = rng.standard_normal((LONGEST + 1010, HIDDEN), np.float32).astype(np.float16)
    with DatasetWriter.create(str(own), manifest) as writer:
        left, number = nbytes, 0
        while left > 0:
            length = int(rng.integers(SHORTEST, LONGEST))
            first = int(rng.integers(0, 1000))
            writer.append(
                Sample(
                    hidden_states={
                        layer: pool[first + slot : first + slot + length]
                        for slot, layer in enumerate(manifest.layers)
                    },
                    input_ids=rng.integers(0, VOCABULARY, length),
                    loss_mask=np.ones(length, np.uint8),
                    sample_id=f"s{number}",
                )
            )
            left, number = left - length * 4 * 2 * HIDDEN, number + 1
    _command("export-dataset", own, "--format", layout, "--model", model, "--out", out)
    shutil.rmtree(own)
    os.sync()
    return out


def _take_turns(
    sources: dict[str, Path], place: Path, model: Path, options: argparse.Namespace
) -> None:
    sizes = {name: _size(source) for name, source in sources.items()}
    took: dict[str, list[float]] = {"copy": [], **{name: [] for name in sources}}
    peaks: dict[str, list[int]] = {name: [] for name in sources}
    _import(sources["a third"], place, model, options.layout)  # its modules are compiled now
    for _ in range(options.rounds):
        begin = time.perf_counter()
        shutil.copytree(sources["all"], place / "copied")
        took["copy"].append(time.perf_counter() - begin)
        shutil.rmtree(place / "copied")
        for name, source in sources.items():
            seconds, peak = _import(source, place, model, options.layout)
            took[name].append(seconds)
            peaks[name].append(peak)
    print(f"{options.layout}: {sizes['all'] / 1e9:.2f} GB, {options.rounds} rounds")
    copied = [sizes["all"] / seconds for seconds in took["copy"]]
    whole = [sizes["all"] / seconds for seconds in took["all"]]
    more = sizes["all"] - sizes["a third"]
    later = [more / (b - a) for a, b in zip(took["a third"], took["all"], strict=True)]
    _tell("copy", copied, 1e9, "GB/s")
    _tell("import", whole, 1e9, "GB/s")
    _tell("without its start", later, 1e9, "GB/s")
    for what, speeds in (("ratio", whole), ("without its start", later)):
        _tell(
            what, [one / other for one, other in zip(speeds, copied, strict=True)], 1, "of a copy"
        )
    for name, found in peaks.items():
        _tell(f"memory, {name}", found, 1e6, "MB at its peak")


def _tell(what: str, values: Sequence[float], unit: float, name: str) -> None:
    """Median and range."""
    low, middle, high = (
        f"{of(values) / unit:,.{0 if unit == 1e6 else 2}f}" for of in (min, statistics.median, max)
    )
    print(f"{what:>20}: {middle} {name} ({low} to {high})")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _import(source: Path, place: Path, model: Path, layout: str) -> tuple[float, int]:
    """Seconds and peak resident bytes of a whole `import`."""
    out = place / "out"
    words = ["import", source, "--format", layout, "--model", model, "--out", out, "--no-validate"]
    if layout == "speculators":
        words += ["--layers", LAYERS, "--norm", "pre"]
    else:
        words += ["--layers", LAYERS]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(place / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.perf_counter()
    process = subprocess.Popen(_words(*words), stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        raise SystemExit(f"import ended with {os.waitstatus_to_exitcode(status)}")
    shutil.rmtree(out)
    return seconds, usage.ru_maxrss * 1024


def _command(*words: object) -> None:
    subprocess.run(_words(*words), check=True, stdout=subprocess.DEVNULL)


def _words(*words: object) -> list[str]:
    return [sys.executable, "-m", "eagle3data.cli.main", *map(str, words)]


if __name__ == "__main__":
    main()
