"""The `eagle3data` command: registers the commands and turns errors into exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from keyword import iskeyword
from shutil import get_terminal_size
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from eagle3data.schema.errors import Eagle3DataError

COMMANDS = (
    "prepare",
    "regenerate",
    "plan",
    "extract",
    "status",
    "release",
    "serve-args",
    "info",
    "show",
    "stats",
    "validate",
    "repair",
    "copy",
    "card",
    "import",
    "export-dataset",
    "train",
    "export",
    "evaluate",
    "view",
    "bench",
)
"""Each lives in the module of its name, and is imported when that is asked for."""

_EXTRA_OF = {
    "torch": "transformers",
    "transformers": "transformers",
    "safetensors": "transformers",
    "huggingface_hub": "hub",
    "yaml": "train",
    "tensorboardX": "tensorboard",
    "s3fs": "s3",
    "urllib3": "endpoint",
    "matplotlib": "plot",
    "starlette": "view",
    "uvicorn": "view",
    "jinja2": "view",
    "markupsafe": "view",
    "chartkick": "view",
}


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a command raises into a paragraph on stderr and the interface's exit code.

    0 fine, 1 the thing asked about is not fine, 2 the command could not do its work,
    3 undetermined (validate only), 130 interrupted.
    """

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except Eagle3DataError as error:
            _stop(f"error: {error}", 2)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRA_OF:
                raise
            _stop(
                f"error: this needs the package {package}, which is not installed. Install it "
                f"with: pip install 'eagle3data[{_EXTRA_OF[package]}]'",
                2,
            )
        except OSError as error:
            _stop(f"error: {error}", 2)
        except KeyboardInterrupt:
            _stop("interrupted.", 130)

    return run


def _stop(text: str, code: int) -> None:
    from eagle3data.cli.console import tell

    sys.stdout.flush()
    tell(text)
    raise typer.Exit(code)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"eagle3data {version('eagle3data')}")
        raise typer.Exit


_FRAMES_FROM = 64
"""Columns; in narrower windows help in frames loses words, so it is plain there, and wraps."""
_columns = get_terminal_size().columns
_markup: Literal["rich"] | None = "rich" if _columns >= _FRAMES_FROM else None


class _Commands(Mapping[str, Any]):
    """The commands by name; each is built when it is asked for, so that none waits for others."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()


@cache
def _command(name: str) -> Any:
    python_name = name.replace("-", "_") + "_" * iskeyword(name)
    module = import_module(f"eagle3data.cli.{python_name}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=_markup)
    alone.command(name=name)(reported(getattr(module, python_name)))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=_markup,
    context_settings={} if _columns >= _FRAMES_FROM else {"terminal_width": _columns},
    pretty_exceptions_enable=False,
    help="The data layer of EAGLE-3 training: extract, check, stream and train on hidden states.",
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Handle the options that go before a command."""


if __name__ == "__main__":
    app()
