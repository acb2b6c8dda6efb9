"""The main job end to end on a CPU, as `make demo` runs it: the same commands a person types.

Regenerates answers with the target itself, prepares, plans, extracts (both in vLLM), looks,
validates, trains a small draft, exports it, lets vLLM draft with it, and prints what was made.
Running it again continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from eagle3data.schema.machine import has_bfloat16_units

PROMPTS = "examples/demo/prompts.jsonl"
CONFIG = "examples/demo/train.yaml"
QUESTIONS = "examples/demo/questions.jsonl"
"""None of which the draft was trained on."""
MADE = (
    "conversations.jsonl",
    "prompts.arrow",
    "states",
    "draft",
    "draft-sglang",
    "acceptance.json",
)


def run(*words: str) -> float:
    """Run one `eagle3data` command as a person would; returns its seconds, stops on failure."""
    print(f"\n$ eagle3data {shlex.join(words)}", flush=True)
    begin = time.monotonic()
    done = subprocess.run([_command(), *words], check=False)
    if done.returncode:
        raise SystemExit(f"demo: 'eagle3data {words[0]}' ended with exit code {done.returncode}.")
    return time.monotonic() - begin


def ask(*words: str) -> dict[str, Any]:
    """What a command reports with `--json`."""
    done = subprocess.run([_command(), *words, "--json"], check=True, stdout=subprocess.PIPE)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _command() -> str:
    return str(Path(sys.executable).with_name("eagle3data"))


def road(model: str, out: Path) -> list[list[str]]:
    """The commands in their order, each as the words behind `eagle3data`; docs show the same."""
    conversations, prompts, states, draft, sglang, acceptance = (str(out / name) for name in MADE)
    return [
        ["regenerate", PROMPTS, "--model", model, "--out", conversations,
         "--max-new-tokens", "96"],
        ["prepare", conversations, "--model", model, "--out", prompts,
         "--max-length", "1024", "--eval-fraction", "0.1"],
        ["plan", prompts, "--model", model, "--out", states],
        ["extract", prompts, "--model", model, "--out", states],
        ["info", states],
        ["show", states, "0", "--model", model],
        ["stats", states],
        ["validate", states, "--level", "all", "--model", model],
        ["train", states, "--model", model, "--out", draft, "--config", CONFIG],
        ["export", draft, "--format", "sglang", "--out", sglang],
        ["evaluate", draft, "--model", model, "--prompts", QUESTIONS,
         "--max-new-tokens", "64", "--out", acceptance],
    ]  # fmt: skip


def main() -> None:
    """Run the road and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    out, model = arguments.out, arguments.model
    if not has_bfloat16_units():
        print("This CPU only emulates bfloat16, so the model runs in float32.")
        os.environ.setdefault("EAGLE3DATA_COMPUTE_DTYPE", "float32")
    out.mkdir(parents=True, exist_ok=True)
    steps = road(model, out)
    seconds = {words[0]: run(*words) for words in steps}
    paths = {name: str(out / name) for name in MADE}
    states = paths["states"]
    summary = json.loads((Path(paths["draft"]) / "summary.json").read_text())
    _print_table(ask("info", states), summary, seconds, paths, model)


def _print_table(
    info: dict[str, Any],
    summary: dict[str, Any],
    seconds: dict[str, float],
    paths: dict[str, str],
    model: str,
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="What was made", title_justify="left", box=None, header_style="bold")
    for name in ("step", "seconds", "result", "where"):
        table.add_column(name, justify="right" if name == "seconds" else "left", overflow="fold")
    shards = info["shards"]
    rows = [
        ("regenerate", f"answers by the target itself, in {_engine_of_answers(paths)}",
         paths["conversations.jsonl"]),
        ("prepare", f"{info['samples']:,} conversations, {info['loss_tokens']:,} tokens with loss",
         paths["prompts.arrow"]),
        ("extract", f"{info['tokens']:,} tokens x layers {info['capture']['layers']}, "
         f"{shards['committed']} of {shards['planned']} shards, {info['bytes'] / 1e6:,.0f} MB, by "
         f"{info['capture']['engine_version']}",
         paths["states"]),
        ("validate", "all levels: clean", paths["states"]),
        ("train", train_line(summary), paths["draft"]),
        ("export", "as SGLang loads it (--format vllm for vLLM)", paths["draft-sglang"]),
        ("evaluate", acceptance_line(paths["acceptance.json"]), paths["acceptance.json"]),
    ]  # fmt: skip
    for step, result, where in rows:
        table.add_row(step, f"{seconds[step]:.0f}", result, where)
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print()
    console.print(table)
    console.print(f"\nAll of it took {sum(seconds.values()):.0f} s. Next, with your own prompts:")
    console.print(
        f"  .venv/bin/eagle3data prepare YOURS.jsonl --model {model} --out yours.arrow",
        soft_wrap=True,
    )


def _engine_of_answers(paths: dict[str, str]) -> str:
    with Path(paths["conversations.jsonl"]).open() as file:
        return str(json.loads(file.readline())["engine"])


def train_line(summary: dict[str, Any]) -> str:
    """The training's figures on held-out samples, before and after."""
    start, end = summary["held_out"]["start"], summary["held_out"]["end"]
    return (
        f"{summary['steps']} steps; on held-out samples: loss {start['loss']:.2f} -> "
        f"{end['loss']:.2f}; accuracy by step {_by_step(start)} -> {_by_step(end)} (always the "
        f"commonest token: {summary['commonest_token_accuracy']:.2f}); simulated acceptance length "
        f"{start['simulated_acceptance_length']:.2f} -> {end['simulated_acceptance_length']:.2f}"
    )


def acceptance_line(path: str) -> str:
    """What a server makes of the draft."""
    found = json.loads(Path(path).read_text())
    rates = "/".join(f"{rate:.2f}" for rate in found["acceptance_by_position"])
    same, answers = found["same_answers_without_draft"], found["answers"]
    return (
        f"acceptance length {found['acceptance_length']:.2f} in vLLM, {rates} of the tokens "
        f"drafted at each position kept; {same} of {answers} answers the same without the draft"
    )


def _by_step(rates: dict[str, Any]) -> str:
    return "/".join(f"{step['accuracy']:.2f}" for step in rates["steps"])


if __name__ == "__main__":
    main()
