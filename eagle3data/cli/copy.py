"""`eagle3data copy`: transcode, upload, download, subset and merge data sets."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3data.cli import options as o
from eagle3data.cli.console import Progress, out, print_json, print_pairs, progress, tell
from eagle3data.schema.errors import InputError
from eagle3data.schema.words import size

if TYPE_CHECKING:
    from eagle3data.transfer.job import CopyReport, Preview

_CHOICES = {"--duplicates": ("refuse", "skip"), "--on-error": ("raise", "skip")}


def copy(
    urls: Annotated[
        list[str],
        typer.Argument(metavar="SRC... DST", help="Data sets, and where to; any URLs."),
    ],
    codec: Annotated[
        str | None, typer.Option(help="none, lz4 or pcodec; the source's by default.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="Only samples for which this holds, by index columns."),
    ] = None,
    drop: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Leave these out: ids separated by commas, or @FILE."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Keep these layers only: ids separated by commas.")
    ] = None,
    duplicates: Annotated[
        str, typer.Option(help="Ids that occur twice: refuse, or skip the later ones.")
    ] = "refuse",
    on_error: Annotated[
        str, typer.Option(help="Damaged samples: raise, or skip them (they go to DST's ledger).")
    ] = "raise",
    compact: Annotated[
        bool, typer.Option("--compact", help="Leave behind the bytes of samples put aside.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take; write nothing.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Copy, transcode, upload, download, subset or merge data sets; every byte is verified.

    One source with no choice made is copied byte for byte. Anything else writes its samples
    anew, in shards of their own; what is left out leaves nothing in DST. Running it again
    continues, and several runs share the shards.

    EXPR compares columns of the index: length >= 128 and split == 'train',
    absmax[30] < 1000, source_extra['topic'] in ['code', 'math'], 'wiki' in source.

    Example: eagle3data copy ./states s3://bucket/states --codec pcodec --where "length >= 128"
    """
    from eagle3data.transfer.copy import CopyOptions, plan_copy

    if len(urls) < 2:
        raise InputError("copy needs at least one SRC, and DST: eagle3data copy ./states ./copy")
    *sources, url = urls
    options = CopyOptions(
        codec=codec,
        where=where,
        drop=_ids(drop),
        layers=layers,
        skip_duplicates=_is_skip("--duplicates", duplicates),
        skip_damaged=_is_skip("--on-error", on_error),
        compact=compact,
    )
    job = plan_copy(sources, url, options)
    if dry_run:
        _show_preview(url, job.preview, as_json=json)
        return
    with _Shown(job.preview) as shown:
        try:
            report = job.run(shown.advance, shown.wait)
        except KeyboardInterrupt:
            tell(f"\nstopped. Run the same command again to continue {url}.")
            raise
    _show_report(url, job.preview, report, as_json=json)


def _show_preview(url: str, preview: Preview, *, as_json: bool) -> None:
    if as_json:
        print_json({"url": url, **preview.__dict__, "fits": preview.fits})
    else:
        free = preview.free_bytes
        print_pairs(
            [
                ("way", "byte for byte" if preview.byte_for_byte else "samples written anew"),
                ("samples", f"{preview.samples:,}"),
                ("tokens", f"{preview.tokens:,}"),
                ("left out", f"{preview.dropped:,} dropped, {preview.duplicates:,} duplicates"),
                ("shards", f"{preview.missing:,} of {preview.shards:,} to write"),
                ("bytes", f"about {size(preview.nbytes)} to write"),
                ("free", "not known" if free is None else size(free)),
            ]
        )
    if not preview.fits:
        tell(f"{url} has too little room.")
        raise typer.Exit(1)


def _show_report(url: str, preview: Preview, report: CopyReport, *, as_json: bool) -> None:
    if as_json:
        left_out = {"dropped": preview.dropped, "duplicates": preview.duplicates}
        way = {"byte_for_byte": preview.byte_for_byte}
        print_json({"url": url, **way, **report.__dict__, **left_out})
    elif report.written or preview.missing:
        out.print(
            f"{url}: {report.written} shards written, {report.shards} committed, "
            f"{report.samples:,} samples, {report.tokens:,} tokens."
        )
    else:
        out.print(f"{url} is complete: {report.shards} shards. Nothing to do.")
    if report.failed:
        tell(f"{report.failed} samples could not be read; {url}/ledger says which and why.")
        raise typer.Exit(1)


class _Shown:
    """Progress in megabytes, counted from any thread."""

    def __init__(self, preview: Preview) -> None:
        self._preview = preview
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._bytes = 0
        self._progress: Progress | None = None
        self._told: list[int] = []

    def __enter__(self) -> _Shown:
        total = self._preview.work_bytes // 1_000_000
        if total:
            self._progress = self._stack.enter_context(progress("copy", total, "MB"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def advance(self, nbytes: int) -> None:
        with self._lock:
            before = self._bytes // 1_000_000
            self._bytes += nbytes
            if self._progress is not None:
                self._progress.advance(self._bytes // 1_000_000 - before)

    def wait(self, shards: list[int]) -> None:
        if shards != self._told:
            self._told = shards
            tell(f"{len(shards)} shards left, all in other processes' hands: waiting.")


def _ids(text: str | None) -> list[str]:
    if text is None:
        return []
    parts = text.split(",")
    if text.startswith("@"):
        try:
            parts = Path(text[1:]).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--drop {text}: the file can't be read: {error}.") from None
    ids = [part.strip() for part in parts if part.strip()]
    if not ids:
        raise InputError(f"--drop {text!r} names no sample. Nothing was written.")
    return ids


def _is_skip(option: str, value: str) -> bool:
    if value not in _CHOICES[option]:
        raise InputError(f"{option} {value}: expected {' or '.join(_CHOICES[option])}.")
    return value == "skip"
