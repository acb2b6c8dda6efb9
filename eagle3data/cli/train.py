"""`eagle3data train`: a draft from a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import print_json, print_pairs, progress, tell
from eagle3data.schema.words import size


def train(
    url: o.Url,
    model: o.Model,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the run; one in it continues.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Over the config.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of sections.")] = None,
    revision: o.Revision = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print sizes, memory and steps; train nothing.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Train an EAGLE-3 draft; running it again continues.

    Example: eagle3data train states/ --model SmolLM2-135M --out draft/ train.max_steps=200

    Settings come from --config and from section.key=value words after the URL; unknown keys
    are errors. Ctrl-C saves a checkpoint after the step in hand. On several GPUs:
    torchrun --nproc-per-node 8 -m eagle3data.cli.main train states/ --model ...
    """
    from eagle3data.trainer.config import load_config
    from eagle3data.trainer.estimate import estimate
    from eagle3data.trainer.inputs import gather
    from eagle3data.trainer.loop import train as run

    chosen = load_config(config, settings or [])
    if dry_run:
        plan = estimate(gather(url, model, chosen, revision))
        print_json(plan) if json else _print_plan(plan)
        return
    with _Report() as report:
        outcome = run(url, model, out, chosen, revision=revision, report=report)
    if outcome.interrupted:
        if outcome.is_first:
            tell(
                f"interrupted after step {outcome.summary['steps']} of "
                f"{outcome.summary['total_steps']}; everything up to it is saved in {out}. Run the "
                "same command again to continue.",
            )
        raise typer.Exit(130)
    if not outcome.is_first:
        return
    print_json(outcome.summary) if json else _print_summary(outcome.summary, out)


class _Report:
    """Turns the loop's records into a progress line and a line an evaluation."""

    def __enter__(self) -> _Report:
        from contextlib import ExitStack

        self._stack = ExitStack()
        self._progress: Any = None
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, record: dict[str, Any]) -> None:

        if record["kind"] == "alignment":
            if record["notice"]:
                tell(f"note: {record['notice']}")
            return
        if record["kind"] == "eval":
            tell(f"step {record['step']}: held-out {_numbers(record)}")
            return
        if self._progress is None:
            left = record["total_steps"] - record["step"] + 1
            self._progress = self._stack.enter_context(progress("training", left, "steps"))
        self._progress.advance(
            1,
            loss=f"{record['loss']:.3f}",
            accuracy=f"{record['accuracy']:.3f}",
            tokens_s=f"{record['tokens'] / record['seconds']:,.0f}",
        )


def _numbers(rates: dict[str, Any]) -> str:
    by_step = " ".join(f"{step['accuracy_given_earlier']:.3f}" for step in rates["steps"])
    # A run may have begun, or ended, before this was measured.
    walked = rates.get("walked_acceptance_length")
    return (
        f"loss {rates['loss']:.3f}, accuracy {rates['accuracy']:.3f} (given earlier steps: "
        f"{by_step}), simulated acceptance length {rates['simulated_acceptance_length']:.2f}"
        + ("" if walked is None else f", {walked:.2f} as a server goes")
    )


def _print_plan(plan: dict[str, Any]) -> None:

    draft = plan["draft"]
    print_pairs(
        [
            ("draft", f"{plan['parameters']:,} parameters, hidden {draft['hidden_size']}"),
            ("vocabulary", f"{draft['draft_vocab_size']:,} of {draft['vocab_size']:,} tokens"),
            ("aux layers", ", ".join(map(str, plan["aux_layers"]))),
            ("steps", f"{plan['total_steps']:,} of up to {plan['tokens_per_step']:,} tokens"),
            ("parameters, gradients, AdamW", size(plan["state_bytes"])),
            ("target's head and embeddings", size(plan["target_bytes"])),
            ("activations of a pack, about", size(plan["activation_bytes"])),
            ("logits held at a time", size(plan["logits_bytes"])),
            ("device", f"{plan['device']}, matrix products in {plan['products']}"),
            *[(name, _setting(value)) for name, value in plan["settings"].items()],
        ]
    )


def _setting(value: Any) -> str:
    return "null" if value is None else str(value)


def _print_summary(summary: dict[str, Any], out: Path) -> None:

    pairs = [
        ("steps", f"{summary['steps']:,}, {summary['tokens']:,} tokens"),
        ("draft", f"{summary['parameters']:,} parameters"),
    ]
    held_out = summary["held_out"]
    if held_out["end"]:
        pairs += [
            ("held-out before", _numbers(held_out["start"])),
            ("held-out after", _numbers(held_out["end"])),
            (
                "commonest token",
                f"accuracy {summary['commonest_token_accuracy']:.3f} by always guessing it",
            ),
            ("best", f"step {summary['best']['step']}, loss {summary['best']['loss']:.3f}"),
        ]
    pairs += [
        ("definitions", f"{out}/summary.json"),
        ("next", f"eagle3data export {out} --format vllm --out {out}/export"),
    ]
    print_pairs(pairs)
