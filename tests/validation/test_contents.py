"""Level `full`: what it reads, what it proves, and going on after an interruption."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eagle3data import open_dataset
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import Codec
from eagle3data.storage.mapped import LocalObject
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury
from eagle3data.validation import contents, progress_file
from eagle3data.validation.findings import Report
from eagle3data.validation.object_contents import ObjectCheck
from eagle3data.validation.validate import validate
from tests.support import random_samples, small_manifest, write_set

KILLED_AFTER = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    manifest = small_manifest()
    samples = random_samples(24, manifest)
    for sample in samples:
        sample.loss_mask[0] = 1
    return Path(write_set(tmp_path / "set", samples, manifest))


@pytest.fixture
def read_shards(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Shards of which an object is really read."""
    seen: set[int] = set()
    run = ObjectCheck.run

    def noted(self: ObjectCheck) -> object:
        seen.add(self.rows.shard)
        return run(self)

    monkeypatch.setattr(ObjectCheck, "run", noted)
    return seen


def damage(folder: Path, shard: int, layer: int = 6) -> str:
    """Flip a bit of the first sample's states; returns its id."""
    file = folder / f"hidden_states/{layer}/c/{shard}/0"
    data = bytearray(file.read_bytes())
    data[10] ^= 4
    file.write_bytes(data)
    dataset = open_dataset(str(folder))
    return next(
        str(dataset.index["sample_id"][position].as_py())
        for position in range(len(dataset))
        if dataset.shard_of(position) == shard
    )


def shards(folder: Path) -> set[int]:
    return {int(file.stem) for file in (folder / "index").glob("*[0-9].arrow")}


def killed(folder: Path | str, file: Path) -> None:
    """A check that kills itself, as the kernel would, once it has noted some shards."""
    program = f"""
import os, signal
from eagle3data.validation import progress_file
from eagle3data.validation.validate import validate
note, count = progress_file.ProgressFile.note, 0
def dying(self, *args):
    global count
    note(self, *args)
    count += 1
    if count == {KILLED_AFTER}:
        os.kill(os.getpid(), signal.SIGKILL)
progress_file.ProgressFile.note = dying
validate({str(folder)!r}, "full", resume={str(file)!r})
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL


def details(report: Report) -> set[tuple[str, str | None, int | None]]:
    return {(finding.kind, finding.sample_id, finding.shard) for finding in report.findings}


def test_a_killed_check_goes_on_where_it_was(
    folder: Path, tmp_path: Path, read_shards: set[int]
) -> None:
    first, last = min(shards(folder)), max(shards(folder))
    expected = {
        ("chunk_corrupt", damage(folder, first), first),
        ("chunk_corrupt", damage(folder, last), last),
    }
    file = tmp_path / "progress.jsonl"
    killed(folder, file)
    report = validate(str(folder), "full", resume=file)
    assert len(read_shards) == len(shards(folder)) - KILLED_AFTER
    assert details(report) == expected
    assert any(f"interrupted, read {KILLED_AFTER} shards" in s for s in report.confidence)
    assert not file.exists()
    read_shards.clear()
    whole = validate(str(folder), "full", resume=file)
    assert read_shards == shards(folder)
    assert whole.checked == report.checked
    assert details(whole) == expected


@pytest.mark.parametrize("rewritten", ["object", "part", "tombstone"])
def test_a_shard_that_changed_since_is_read_again(
    folder: Path, tmp_path: Path, read_shards: set[int], rewritten: str
) -> None:
    file = tmp_path / "progress.jsonl"
    killed(folder, file)
    noted = [json.loads(line)["shard"] for line in file.read_text().splitlines()[1:]]
    if rewritten == "object":
        name = damage(folder, noted[0])
    elif rewritten == "part":
        part = folder / f"index/{noted[0]:08d}.arrow"
        part.write_bytes(part.read_bytes() + b" ")
    else:
        bury(Root(str(folder)), shard=noted[0], sample_id="s0", kind="x", reason="x")
    report = validate(str(folder), "full", resume=file)
    assert set(noted) & read_shards == {noted[0]}
    if rewritten == "object":
        assert details(report) == {("chunk_corrupt", name, noted[0])}


def test_a_line_that_was_cut_off_is_no_line(
    folder: Path, tmp_path: Path, read_shards: set[int]
) -> None:
    file = tmp_path / "progress.jsonl"
    killed(folder, file)
    file.write_bytes(file.read_bytes()[:-20])
    cut_off = validate(str(folder), "full", resume=file)
    assert cut_off.ok
    assert len(read_shards) == len(shards(folder)) - KILLED_AFTER + 1


def test_afresh_forgets(folder: Path, tmp_path: Path, read_shards: set[int]) -> None:
    file = tmp_path / "progress.jsonl"
    killed(folder, file)
    assert validate(str(folder), "full", resume=file, afresh=True).ok
    assert read_shards == shards(folder)


def test_ctrl_c_keeps_what_was_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "progress.jsonl"
    note = progress_file.ProgressFile.note

    def interrupted(self: progress_file.ProgressFile, *args: Any) -> None:
        note(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(progress_file.ProgressFile, "note", interrupted)
    with pytest.raises(KeyboardInterrupt):
        validate(str(folder), "full", resume=file)
    assert len(file.read_text().splitlines()) == 2


def test_a_file_of_something_else_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("buy milk\n")
    with pytest.raises(InputError, match="not the progress"):
        validate(str(folder), "full", resume=file, afresh=True)
    assert file.read_text() == "buy milk\n"


def test_two_checks_do_not_share_a_file(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    with (
        progress_file.open_progress(file),
        pytest.raises(InputError, match="another check"),
    ):
        validate(str(folder), "full", resume=file)


@pytest.mark.parametrize("place", ["/dev/null", "/dev/full"])
def test_a_device_is_no_file(folder: Path, place: str) -> None:
    with pytest.raises(InputError, match="no ordinary file"):
        validate(str(folder), "full", resume=place)
    assert Path(place).exists()


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_does_not_end_the_check(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = progress_file.ProgressFile.note

    def full(self: progress_file.ProgressFile, *args: Any) -> None:
        self._file = FullDisk()
        note(self, *args)

    monkeypatch.setattr(progress_file.ProgressFile, "note", full)
    report = validate(str(folder), "full", resume=tmp_path / "progress.jsonl")
    assert report.ok
    assert any("No space left" in sentence for sentence in report.confidence)


def test_a_set_in_a_bucket(bucket: str, tmp_path: Path, read_shards: set[int]) -> None:
    """There an object's identity is its ETag, and its size comes from a listing."""
    pytest.importorskip("s3fs")
    manifest = small_manifest()
    samples = random_samples(8, manifest)
    for sample in samples:
        sample.loss_mask[0] = 1
    url = write_set(f"{bucket}/{tmp_path.name}", samples, manifest)
    assert validate(url, "full").ok
    file = tmp_path / "progress.jsonl"
    killed(url, file)
    read_shards.clear()
    report = validate(url, "full", resume=file)
    assert report.ok
    assert any(f"read {KILLED_AFTER} shards" in sentence for sentence in report.confidence)
    root = Root(url)
    root.replace("hidden_states/6/c/0/0", root.read("hidden_states/6/c/0/0")[:-5])
    assert {finding.kind for finding in validate(url, "quick").errors} == {"object_truncated"}


def test_progress_counts_every_byte(folder: Path) -> None:
    dataset = open_dataset(str(folder))
    objects = {
        shard: {
            name: {"bytes": (folder / name).stat().st_size}
            for name in (f"hidden_states/6/c/{shard}/0", f"input_ids/c/{shard}")
        }
        for shard in shards(folder)
    }
    counted: list[int] = []
    contents.check_contents(dataset, objects, counted.append)
    assert sum(counted) == contents.stored_bytes(dataset, objects)


def test_few_samples_of_a_large_set_are_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(str(folder))
    assert contents.choose_measured(dataset) == set(range(len(dataset)))
    monkeypatch.setattr(contents, "MEASURED_BYTES", 1)
    monkeypatch.setattr(contents, "MEASURED_SHARE", 0.25)
    chosen = contents.choose_measured(dataset)
    assert len(chosen) == len(dataset) // 4
    assert contents.check_contents(dataset, {}, lambda _: None).measured == len(chosen)


@pytest.fixture(params=list(Codec))
def rewrite(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Path]:
    manifest = small_manifest(codec=request.param)
    return lambda: Path(write_set(tmp_path / "set", random_samples(24, manifest), manifest))


def test_an_unmeasured_sample_of_a_changed_object_is_found(
    rewrite: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written again by stock zarr, its checksums are valid: only the sum over them is not."""
    import zarr

    folder = rewrite()
    monkeypatch.setattr(contents, "MEASURED_BYTES", 1)
    monkeypatch.setattr(contents, "MEASURED_SHARE", 1e-6)
    dataset = open_dataset(str(folder))
    position = 3
    assert position not in contents.choose_measured(dataset)
    start = dataset.index["token_offset"][position].as_py()
    array = zarr.open_array(folder / "hidden_states/6", mode="r+")
    array[start] = float("nan")
    report = validate(str(folder), "full")
    kinds = {(f.kind, f.sample_id, f.layer) for f in report.errors if f.kind != "mask_empty"}
    assert ("nonfinite", dataset.index["sample_id"][position].as_py(), 6) in kinds


def test_a_disk_that_fails_is_no_reason_to_repair(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: LocalObject, bounds: Sequence[tuple[int, int]]) -> object:
        if self.size > 4096 and any(stop < self.size for _, stop in bounds):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, bounds)

    read = LocalObject.read_all
    monkeypatch.setattr(LocalObject, "read_all", failing)
    report = validate(str(folder), "full")
    assert {finding.kind for finding in report.errors} == {"object_unreadable"}
    assert {"repair" in (finding.advice or "") for finding in report.errors} == {False}
