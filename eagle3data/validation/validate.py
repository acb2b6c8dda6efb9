"""`validate`: run the checks of a level over a data set."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.storage import layout
from eagle3data.storage.root import Root
from eagle3data.validation.contents import Contents, check_contents, stored_bytes
from eagle3data.validation.findings import REPAIR, Checked, Finding, Level, Report
from eagle3data.validation.overview import overview_of
from eagle3data.validation.progress_file import ProgressFile, open_progress
from eagle3data.validation.recomputed import Recomputing
from eagle3data.validation.significance import FALSE_ALARM
from eagle3data.validation.stage import Stage, silent, whole_units
from eagle3data.validation.structure import Structure, check_structure
from eagle3data.validation.summary import count_of

_MEGABYTE = 1_000_000


def validate(
    url: str,
    level: str = "full",
    model: str | None = None,
    revision: str | None = None,
    *,
    trust_remote_code: bool = False,
    recompute: Recomputing | None = None,
    stage: Stage | None = None,
    resume: str | Path | None = None,
    afresh: bool = False,
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
        trust_remote_code: let the model's and the tokenizer's own code run.
        recompute: run the target itself on some samples and compare every captured layer
            (`eagle3data.Recompute(8)`); needs `model` and a level that reads states.
        stage: shows progress; see `Stage`.
        resume: file in which `full` notes the shards that it has read: a run that was
            interrupted goes on where it was. It is gone once the check is done.
        afresh: forget what an earlier run noted there.

    Raises:
        InputError: no data set there, no such level, or no such model.
        ManifestError: a manifest that can't be read.
    """
    if level not in set(Level):
        raise InputError(f"level is {level!r}; expected one of {', '.join(Level)}.")
    if recompute is not None and (model is None or level == Level.QUICK):
        raise InputError(
            "recomputing runs the target over stored states: it needs --model, and level "
            "full, semantic or all."
        )
    report = Report(url=url, level=Level(level))
    stage = stage or silent
    root = Root(url)
    structure = check_structure(root, model, revision, stage)
    report.add(structure.findings)
    report.hidden = structure.hidden
    rows = structure.rows
    report.checked = Checked(
        samples=rows.num_rows,
        tokens=int(rows["length"].to_numpy().sum()),
        bytes=structure.bytes_read,
    )
    report.overview = overview_of(structure.manifest, len(structure.parts), rows)
    dataset = _open(url, report)
    if dataset is not None and not len(dataset):
        report.undecided.append("The set has no committed samples.")
    elif dataset is not None:
        if report.level.reads_contents:
            _contents(dataset, structure, report, stage, _Resume(resume, afresh))
        if report.level.probes_meaning:
            _meaning(dataset, model, revision, report, stage)
            _masks(dataset, model, revision, report, trust=trust_remote_code)
        if recompute is not None and model is not None:
            target = _Target(model, revision, trust_remote_code)
            _recompute(dataset, target, recompute, report, stage)
    _levels_note(report)
    report.parts = _parts_concerned(root, report)
    named = (finding.sample_id for finding in report.findings if finding.sample_id is not None)
    report.overview.locate(named, rows)
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
        report.add([Finding(kind="index_corrupt", detail=str(error), advice=REPAIR)])
        return None


class _Resume(NamedTuple):
    """Where `full` notes its progress, and whether to forget what is there."""

    file: str | Path | None
    afresh: bool

    def open(self) -> AbstractContextManager[ProgressFile | None]:
        if self.file is None:
            return nullcontext()
        return open_progress(Path(self.file), afresh=self.afresh)


def _contents(
    dataset: Dataset, structure: Structure, report: Report, stage: Stage, resume: _Resume
) -> None:
    total = stored_bytes(dataset, structure.objects)
    with (
        resume.open() as record,
        stage("reading every byte", -(-total // _MEGABYTE), "MB") as advance,
    ):
        whole = whole_units(advance, _MEGABYTE)
        contents = check_contents(dataset, structure.objects, whole, record)
    report.add(contents.findings)
    report.checked.bytes += contents.bytes_read
    report.confidence += _contents_notes(contents, len(dataset), record)


def _contents_notes(contents: Contents, samples: int, record: ProgressFile | None) -> Iterator[str]:
    yield (
        f"Every checksum of {samples:,} samples was compared, and each object with what was "
        f"committed. The magnitudes of {contents.measured:,} samples were taken again and compared "
        "with the index."
    )
    if contents.uncompared:
        yield (
            f"Of shards {contents.uncompared} the visible samples were checked, but not whether "
            "each object as a whole is the one that was committed: bytes of hidden samples differ."
        )
    if record is not None and record.since is not None:
        began = datetime.datetime.fromtimestamp(record.since, datetime.UTC)
        yield (
            f"Earlier runs, which were interrupted, read {count_of(contents.recalled, 'shard')} of "
            f"this, since {began:%Y-%m-%d %H:%M} UTC; by their objects' times and sizes they are "
            "as they were. --afresh reads them again."
        )
    if record is not None and record.failure:
        yield f"This run could not be continued if it were interrupted: {record.failure}."


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
    report.measured = meaning.measured
    report.checked.bytes += meaning.bytes_read
    if report.level is Level.SEMANTIC:
        report.checked.samples, report.checked.tokens = meaning.samples, meaning.tokens


def _masks(
    dataset: Dataset, model: str | None, revision: str | None, report: Report, *, trust: bool
) -> None:
    from eagle3data.validation.masks import check_masks

    if any(finding.kind == "wrong_tokenizer" for finding in report.errors):
        return
    found = check_masks(dataset, model, revision, trust_remote_code=trust)
    report.add(found.findings)
    report.undecided += found.undecided
    report.confidence += found.confidence


class _Target(NamedTuple):
    """The model that recomputes."""

    model: str
    revision: str | None
    trust_remote_code: bool


def _recompute(
    dataset: Dataset, target: _Target, recompute: Recomputing, report: Report, stage: Stage
) -> None:
    from eagle3data.validation.recompute import check_recomputed

    if any(finding.kind == "wrong_model" for finding in report.errors):
        report.confidence.append("Nothing was recomputed: the model is not the set's own.")
        return
    with stage("recomputing", min(recompute.samples, len(dataset)), "samples") as advance:
        found = check_recomputed(
            dataset,
            target.model,
            target.revision,
            recompute,
            advance,
            trust_remote_code=target.trust_remote_code,
        )
    report.add(found.findings)
    report.undecided += found.undecided
    report.confidence += found.confidence
    report.checked.bytes += found.bytes_read


def _levels_note(report: Report) -> None:
    unread = {
        Level.QUICK: "No state was read: damage inside objects and wrong states don't show here.",
        Level.FULL: "That bytes are whole says nothing of whether states belong to their tokens: "
        "use --level semantic or all.",
        Level.SEMANTIC: "Only the probed samples' bytes were read: use --level all for every byte.",
    }
    if report.level in unread:
        report.confidence.append(unread[report.level])
