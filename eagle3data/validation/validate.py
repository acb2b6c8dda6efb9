"""`validate`: run the checks of a level over a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from eagle3data.validation.findings import Checked, Finding, Level, Report
from eagle3data.validation.significance import FALSE_ALARM
from eagle3data.validation.structure import check_structure

Stage = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]
"""`(description, total, unit)` to a context that yields a function to call with work done."""


def validate(
    url: str,
    level: str = "full",
    model: str | None = None,
    revision: str | None = None,
    *,
    stage: Stage | None = None,
) -> Report:
    """Check a data set.

    Args:
        url: its root, a folder or any URL that fsspec opens.
        level: `quick` (index, manifest, sizes of objects), `full` (and every byte), `semantic`
            (quick, and a sample of samples probed for whether states belong to their tokens), or
            `all` of it.
        model: folder or hub id of the target; lets `semantic` look through its head, and every
            level compare model and tokenizer.
        revision: hub revision of the model.
        stage: shows progress; see `Stage`.

    Raises:
        InputError: no data set there, no such level, or no such model.
        ManifestError: a manifest that can't be read.
    """
    if level not in set(Level):
        raise InputError(f"level is {level!r}; expected one of {', '.join(Level)}.")
    report = Report(url=url, level=Level(level))
    stage = stage or _silent
    root = Root(url)
    structure = check_structure(root, model, revision)
    report.add(structure.findings)
    report.hidden = structure.hidden
    rows = structure.rows
    report.checked = Checked(
        samples=rows.num_rows,
        tokens=int(rows["length"].to_numpy().sum()),
        bytes=structure.bytes_read,
    )
    dataset = _open(url, report)
    if dataset is not None and not len(dataset):
        report.undecided.append("The set has no committed samples.")
    elif dataset is not None:
        if report.level.reads_contents:
            _contents(dataset, report, stage)
        if report.level.probes_meaning:
            _meaning(dataset, model, revision, report, stage)
    _levels_note(report)
    report.parts = _parts_concerned(root, report)
    return report


def _parts_concerned(root: Root, report: Report) -> dict[int, str]:
    shards = {finding.shard for finding in report.errors if finding.shard is not None}
    digests = {shard: part_digest(root, shard) for shard in sorted(shards)}
    return {shard: digest for shard, digest in digests.items() if digest is not None}


def part_digest(root: Root, shard: int) -> str | None:
    """What tells a shard's index part from that of another attempt; None where there is none."""
    try:
        data = root.read(layout.index_part(shard))
    except FileNotFoundError:
        return None
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _open(url: str, report: Report) -> Dataset | None:
    """The data set, if its index is whole enough to be opened at all."""
    try:
        return open_dataset(url)
    except (CorruptionError, InputError) as error:
        report.add([Finding(kind="index_corrupt", detail=str(error))])
        return None


def _contents(dataset: Dataset, report: Report, stage: Stage) -> None:
    from eagle3data.validation.contents import check_contents

    with stage("reading every byte", len(dataset), "samples") as advance:
        contents = check_contents(dataset, advance)
    report.add(contents.findings)
    report.checked.bytes += contents.bytes_read
    if contents.uncompared:
        report.confidence.append(
            f"Of shards {contents.uncompared} the visible samples were checked, but not whether "
            "each object as a whole is the one that was committed: bytes of hidden samples differ."
        )


def _meaning(
    dataset: Dataset, model: str | None, revision: str | None, report: Report, stage: Stage
) -> None:
    try:
        from eagle3data.validation.semantic import check_meaning
    except ModuleNotFoundError as error:
        raise InputError(
            f"level {report.level} needs {error.name}: pip install 'eagle3data[transformers]'."
        ) from None
    with stage("probing", len(dataset.manifest.layers), "layers") as advance:
        meaning = check_meaning(dataset, model, revision, advance)
    report.add(meaning.findings, chance=FALSE_ALARM)
    report.undecided += meaning.undecided
    report.confidence += meaning.confidence
    report.checked.bytes += meaning.bytes_read
    if report.level is Level.SEMANTIC:
        report.checked.samples, report.checked.tokens = meaning.samples, meaning.tokens


def _levels_note(report: Report) -> None:
    unread = {
        Level.QUICK: "No state was read: damage inside objects and wrong states don't show here.",
        Level.FULL: "That bytes are whole says nothing of whether states belong to their tokens: "
        "use --level semantic or all.",
        Level.SEMANTIC: "Only the probed samples' bytes were read: use --level all for every byte.",
    }
    if report.level in unread:
        report.confidence.append(unread[report.level])


def _silent(_: str, __: int, ___: str) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)
