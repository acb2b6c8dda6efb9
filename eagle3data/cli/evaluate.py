"""`eagle3data evaluate`: the acceptance length that a real vLLM reports for a draft."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import out, print_json, print_table, progress, tell
from eagle3data.schema.errors import InputError

if TYPE_CHECKING:
    from eagle3data.evaluation.evaluate import Evaluation, Part


def evaluate(
    draft: Annotated[
        Path,
        typer.Argument(metavar="DRAFT", help="A run's folder, a checkpoint, or one for vLLM."),
    ],
    model: o.Model,
    prompts: Annotated[
        list[str],
        typer.Option(
            metavar="FILE", help="JSONL of `turns`, `messages` or `prompt`; may be given again."
        ),
    ],
    num_speculative_tokens: Annotated[int, typer.Option(help="Tokens drafted a step.")] = 3,
    max_new_tokens: Annotated[int, typer.Option(help="Answers are cut there.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling, with a temperature.")] = 0,
    dtype: o.ModelDtype = "bfloat16",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many conversations of each category.")
    ] = None,
    compare: Annotated[
        bool, typer.Option(help="Answer everything once more without the draft.")
    ] = True,
    tensor_parallel_size: o.TensorParallelSize = 1,
    engine_arg: o.EngineArg = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    report: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON report there, too.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png|svg", help="Draw the figures there (extra `plot`)."),
    ] = None,
    json: o.Json = False,
) -> None:
    """Let vLLM answer prompts with a draft, and say how many drafted tokens it kept.

    The acceptance length is what a step of the target yields: 1 where the draft is of no use, one
    more than the drafted tokens where all are right. Greedy answers are the same with and without a
    draft, but for rounding; `same` says how many were.

    Example: eagle3data evaluate draft/ --model ./smollm2 --prompts mt_bench.jsonl
    """
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        raise InputError("evaluate asks a real vLLM: pip install 'eagle3data[vllm]'.")
    from eagle3data.cli.engine_args import engine_arguments
    from eagle3data.evaluation.evaluate import EvaluateOptions
    from eagle3data.evaluation.evaluate import evaluate as run
    from eagle3data.evaluation.plot import check_plot
    from eagle3data.evaluation.plot import plot as draw
    from eagle3data.extractor.engines.choice import EngineOptions
    from eagle3data.trainer.files import write_json

    if plot is not None:
        check_plot(plot)
    chosen = EvaluateOptions(
        num_speculative_tokens=num_speculative_tokens,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        dtype=dtype,
        compare=compare,
        limit=limit,
        engine=EngineOptions(
            engine="vllm",
            tensor_parallel_size=tensor_parallel_size,
            arguments=engine_arguments(engine_arg),
            revision=revision,
            trust_remote_code=trust_remote_code,
        ),
    )
    with _Shown() as shown:
        found = run(
            draft,
            model,
            prompts,
            chosen,
            on_start=shown.start,
            on_talk=shown.advance,
            on_reject=lambda row, reason: tell(f"{row.place}: {reason}"),
        )
    if report is not None:
        write_json(report, found.as_dict())
    if plot is not None:
        draw(found.as_dict(), plot)
    if json:
        print_json(found.as_dict())
    else:
        _print(found)


class _Shown:
    """Opens the progress display once the number of conversations is known."""

    def __enter__(self) -> _Shown:
        from contextlib import ExitStack

        self._stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, conversations: int) -> None:
        self._progress = self._stack.enter_context(
            progress("evaluate", conversations, "conversations")
        )

    def advance(self, conversations: int) -> None:
        self._progress.advance(conversations)


def _print(found: Evaluation) -> None:
    positions = range(1, found.num_speculative_tokens + 1)
    kept = (f"kept at {at}" for at in positions)
    columns = ["category", "answers", "acceptance length", *kept, "tokens/s", "without", "same"]
    parts = list(found.parts.items())
    if len(parts) > 1:
        parts.append(("all", found.whole))
    rows = [[name, *_cells(part, found.num_speculative_tokens)] for name, part in parts]
    print_table(columns, rows, left=["category"])
    if found.rejected:
        out.print(f"{found.rejected} rows could not be used; see above.")


def _cells(part: Part, positions: int) -> list[str]:
    length, without = part.acceptance.length, part.speed_without
    rates = [f"{rate:.0%}" for rate in part.acceptance.rates] or ["-"] * positions
    return [
        f"{part.answers:,}",
        "-" if length is None else f"{length:.2f}",
        *rates,
        f"{part.speed:,.0f}",
        "-" if without is None else f"{without:,.0f}",
        "-" if part.same is None else f"{part.same} of {part.answers}",
    ]
