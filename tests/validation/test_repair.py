"""`repair`: each action, what it leaves alone, and that a second one finds nothing to do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3data import DatasetWriter, open_dataset
from eagle3data.schema.errors import InputError
from eagle3data.storage import layout
from eagle3data.storage.claims import Claims
from eagle3data.storage.owner import Owner
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury, list_tombstones
from eagle3data.validation import repair as module
from eagle3data.validation.findings import Finding, Level, Report
from eagle3data.validation.repair import RepairReport, repair
from eagle3data.validation.validate import validate
from tests.faults.stored import StoredSet
from tests.support import random_samples, same_sample, small_manifest, write_set

SAMPLES = random_samples(24, small_manifest(), 60)
for _sample in SAMPLES:
    _sample.loss_mask[0] = 1


@pytest.fixture
def stored(tmp_path: Path) -> StoredSet:
    return StoredSet(Path(write_set(tmp_path / "set", SAMPLES, small_manifest())))


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def did(report: RepairReport) -> set[tuple[str, str]]:
    return {(action.kind, action.place) for action in report.actions}


def mended(stored: StoredSet, **options: Any) -> RepairReport:
    """Repair, with what has to hold for every repair: dry run first, nothing left to do after."""
    url = str(stored.folder)
    before = tree(stored.folder)
    told = repair(url, dry_run=True, **options)
    assert tree(stored.folder) == before
    assert told.ok is (not told.actions and not told.beyond)
    done = repair(url, **options)
    assert did(done) >= did(told)
    again = repair(url, level="full")
    assert again.actions == []
    assert not (stored.folder / ".tmp").exists() or not list((stored.folder / ".tmp").iterdir())
    assert done.samples_to_redo == again.samples_to_redo or not done.is_planned
    return done


def append_again(stored: StoredSet) -> None:
    """Append every sample that the set has no more; the set is whole then, and all equal."""
    url = str(stored.folder)
    have = set(open_dataset(url).index["sample_id"].to_pylist())
    with DatasetWriter.resume(url) as writer:
        for sample in SAMPLES:
            if sample.sample_id not in have:
                writer.append(sample)
    dataset = open_dataset(url)
    assert len(dataset) == len(SAMPLES)
    assert all(same_sample(dataset.get(sample.sample_id), sample) for sample in SAMPLES)
    report = validate(url, "full")
    assert report.findings == []


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_nothing_wrong(stored: StoredSet) -> None:
    before = tree(stored.folder)
    done = mended(stored)
    assert (done.ok, done.actions, done.left_alone, done.beyond) == (True, [], [], [])
    assert tree(stored.folder) == before


def test_orphans_and_strays(stored: StoredSet) -> None:
    for name in ("hidden_states/2/c/99/0", "input_ids/c/99", "loss_mask/c/0.part"):
        path = stored.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    done = mended(stored)
    assert did(done) == {
        ("remove_orphan", "hidden_states/2/c/99/0"),
        ("remove_orphan", "input_ids/c/99"),
        ("remove_stray", "loss_mask/c/0.part"),
    }
    append_again(stored)


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_torn_part_is_no_commit(stored: StoredSet, damage: str) -> None:
    part = stored.parts()[2]
    rows = [row["sample_id"] for row in stored.rows() if row["shard"] == 2]
    data = part.read_bytes()
    if damage == "flipped":
        flip(part, data.index(np.array([SAMPLES[8].input_ids[0]], "<i4").tobytes()))
    else:
        part.write_bytes(data[:-40] if damage == "cut" else b"")
    done = mended(stored)
    kinds = {kind for kind, _ in did(done)}
    assert kinds == {"drop_part", "remove_orphan", "remove_segment", "gather_index"}
    drop = next(action for action in done.actions if action.kind == "drop_part")
    assert sorted(drop.samples) == sorted(rows)
    assert done.samples_to_redo == len(rows)
    assert 2 not in layout.committed_shards(Root(str(stored.folder)))
    append_again(stored)


def test_a_torn_part_of_the_last_shard_without_a_gathered_index(stored: StoredSet) -> None:
    """Then the set can't even be opened, and samples are looked at after the part is gone."""
    (stored.folder / "index/all.arrow").unlink()
    last = max(stored.parts())
    row = stored.rows_of(0)[0]
    flip(stored.object_of(2, row["sample_id"]), 50)
    stored.parts()[last].write_bytes(b"ARROW1")
    told = repair(str(stored.folder), dry_run=True)
    assert not told.ok
    assert any("drops the part first" in sentence for sentence in told.left_alone)
    done = mended(stored)
    assert ("hide_sample", f"sample {row['sample_id']}, shard 0") in did(done)
    append_again(stored)


def test_a_damaged_chunk_hides_exactly_its_sample(stored: StoredSet) -> None:
    row = stored.rows()[5]
    at = row["token_offset"] % 128 // 16 * (16 * 32 * 2 + 4) + 10
    path = stored.object_of(6, row["sample_id"])
    flip(path, at)
    objects = {name: data for name, data in tree(stored.folder).items() if "/c/" in name}
    done = mended(stored)
    assert did(done) == {("hide_sample", f"sample {row['sample_id']}, shard {row['shard']}")}
    assert (done.samples_to_redo, done.shards_to_redo, done.is_planned) == (1, 0, False)
    after = {name: data for name, data in tree(stored.folder).items() if "/c/" in name}
    assert after == objects
    report = validate(str(stored.folder), "full")
    assert report.hidden == 1
    assert [(f.kind, f.sample_id) for f in report.findings] == [("index_hole", row["sample_id"])]
    assert row["sample_id"] not in open_dataset(str(stored.folder)).index["sample_id"].to_pylist()
    append_again(stored)


@pytest.mark.parametrize("level", ["quick", "full"])
@pytest.mark.parametrize("damage", ["gone", "cut", "longer"])
def test_a_damaged_object_hides_its_whole_shard(stored: StoredSet, level: str, damage: str) -> None:
    rows = stored.rows_of(1)
    path = stored.object_of(9, rows[0]["sample_id"])
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-20] if damage == "cut" else data + b"x")
    done = mended(stored, level=level)
    assert did(done) == {("hide_sample", f"sample {row['sample_id']}, shard 1") for row in rows}
    append_again(stored)


def test_whole_chunks_of_another_attempt(stored: StoredSet) -> None:
    row = stored.rows()[4]
    states = stored.states(9, row["sample_id"])
    stored.put(9, row["sample_id"], np.roll(states, 1, axis=0))
    shard = row["shard"]
    done = mended(stored)
    names = {r["sample_id"] for r in stored.rows_of(shard)}
    assert did(done) == {("hide_sample", f"sample {name}, shard {shard}") for name in names}
    append_again(stored)


def test_a_shard_with_a_hidden_damaged_sample_still_compares(stored: StoredSet) -> None:
    first, second = stored.rows_of(0)[:2]
    root = Root(str(stored.folder))
    bury(root, shard=0, sample_id=first["sample_id"], kind="chunk_corrupt", reason="")
    flip(stored.object_of(2, first["sample_id"]), 10)
    holes = [("index_hole", first["sample_id"])]
    report = validate(str(stored.folder), "full")
    assert [(f.kind, f.sample_id) for f in report.findings] == holes
    assert not any("hidden samples differ" in sentence for sentence in report.confidence)
    states = stored.states(6, first["sample_id"])
    stored.put(6, first["sample_id"], states[::-1].copy())
    report = validate(str(stored.folder), "full")
    assert [(f.kind, f.sample_id) for f in report.findings] == holes
    assert any("hidden samples differ" in sentence for sentence in report.confidence)
    flip(stored.object_of(2, second["sample_id"]), second["token_offset"] // 16 * 1028 + 9)
    kinds = {(f.kind, f.sample_id) for f in validate(str(stored.folder), "full").findings}
    assert ("chunk_corrupt", second["sample_id"]) in kinds


@pytest.mark.parametrize("damage", ["gone", "cut", "other rows", "lacks one"])
def test_the_gathered_index_is_made_anew(stored: StoredSet, damage: str) -> None:
    path = stored.folder / "index/all.arrow"
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[:-100])
    elif damage == "other rows":
        flip(path, whole.index(np.array(SAMPLES[3].input_ids[:8], "<i4").tobytes()))
    else:
        last = max(stored.parts())
        data = stored.parts()[last].read_bytes()
        stored.parts()[last].unlink()
        stored._gather()
        (stored.folder / f"index/{last:08d}.arrow").write_bytes(data)
    done = mended(stored)
    assert did(done) == {("gather_index", "index/all.arrow")}
    assert path.read_bytes() == whole


def test_plan_segments_of_a_writer(stored: StoredSet) -> None:
    segments = sorted((stored.folder / "plan").iterdir())
    whole = {path.name: path.read_bytes() for path in segments}
    segments[1].unlink()
    segments[2].write_bytes(b"ARROW1")
    segments[3].write_bytes(whole[segments[0].name])
    (stored.folder / "plan/0099.arrow").write_bytes(whole[segments[0].name])
    done = mended(stored)
    assert did(done) == {
        ("remove_segment", "plan/0099.arrow"),
        *(("rewrite_segment", f"plan/{segments[n].name}") for n in (1, 2, 3)),
    }
    assert validate(str(stored.folder), "quick").findings == []


def test_a_planned_set_keeps_its_segments_and_says_what_extract_does(stored: StoredSet) -> None:
    stored.edit_manifest(lambda manifest: manifest.update(plan_digest="sha256:" + "0" * 64))
    flip(stored.object_of(2, stored.rows_of(3)[0]["sample_id"]), 10)
    stored.parts()[1].write_bytes(b"")
    done = mended(stored)
    assert not any(kind == "remove_segment" for kind, _ in did(done))
    assert (done.samples_to_redo, done.shards_to_redo, done.is_planned) == (1, 1, True)


def test_a_lost_plan_of_extract_is_beyond_repair(stored: StoredSet) -> None:
    stored.edit_manifest(lambda manifest: manifest.update(plan_digest="sha256:" + "0" * 64))
    (stored.folder / "plan/0001.arrow").unlink()
    done = mended(stored)
    assert not done.ok
    assert [(f.kind, f.shard) for f in done.beyond] == [("plan_missing", 1)]
    assert done.actions == []


def test_metadata_and_ledger(stored: StoredSet) -> None:
    path = stored.folder / "hidden_states/6/zarr.json"
    whole = json.loads(path.read_text())
    path.write_text("[")
    (stored.folder / "ledger").mkdir()
    (stored.folder / "ledger/00000000-abc.json").write_text("{torn")
    kinds = {f.kind for f in validate(str(stored.folder), "quick").findings}
    assert kinds == {"array_metadata", "ledger_corrupt"}
    done = mended(stored)
    assert did(done) == {
        ("rewrite_metadata", "hidden_states/6/zarr.json"),
        ("remove_ledger_entry", "ledger/00000000-abc.json"),
    }
    assert "{torn" in next(a.why for a in done.actions if a.kind == "remove_ledger_entry")
    assert json.loads(path.read_text()) == whole
    assert validate(str(stored.folder), "quick").findings == []


def test_a_damaged_tombstone_is_left_and_still_hides(stored: StoredSet) -> None:
    name = stored.rows()[0]["sample_id"]
    tombstone = bury(Root(str(stored.folder)), shard=0, sample_id=name, kind="x", reason="")
    (stored.folder / tombstone.name).write_text("")
    done = mended(stored)
    assert done.actions == []
    assert len(done.left_alone) == 1
    assert validate(str(stored.folder), "quick").hidden == 1


HOLDER = """
import sys
from eagle3data.storage.claims import Claims
from eagle3data.storage.root import Root
root = Root(sys.argv[1])
with Claims(root) as claims:
    claims.acquire("00000099")
    root.create("hidden_states/2/c/99/0", [b"x"])
    root.create("plan/0099.arrow", [b"x"])
    upload = root.begin("input_ids/c/99")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_a_living_process_holds_is_left_alone_until_it_is_killed(stored: StoredSet) -> None:
    words = [sys.executable, "-c", HOLDER, str(stored.folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "ready\n"
        before = tree(stored.folder)
        alone = repair(str(stored.folder), level="quick")
        assert alone.actions == []
        assert any("claims/00000099.0: somebody works on it" in s for s in alone.left_alone)
        assert tree(stored.folder) == before
        held.send_signal(signal.SIGKILL)
        held.wait()
    done = mended(stored, level="quick")
    assert {kind for kind, _ in did(done)} == {
        "remove_orphan",
        "remove_segment",
        "release_claim",
        "remove_temporary",
    }
    assert list((stored.folder / "claims").iterdir()) == []


def another_machine(stored: StoredSet, beat: int = 0) -> None:
    here = Owner.current().as_dict()
    value = {"owner": {**here, "host": "elsewhere"}, "beat": beat, "renewed_at": "2026-01-01"}
    Root(str(stored.folder)).replace("claims/00000099.0", json.dumps(value).encode())


def test_another_machines_claim_is_watched(
    stored: StoredSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Claims", partial(Claims, stale_after=1.2))
    url = str(stored.folder)
    (stored.folder / "input_ids/c/99").write_bytes(b"x")
    another_machine(stored)
    unknown = repair(url, level="quick", wait=False)
    assert unknown.actions == []
    assert "not watched long enough" in unknown.left_alone[0]
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(0.1):
            count += 1
            another_machine(stored, count)

    beating = threading.Thread(target=beat)
    beating.start()
    live = repair(url, level="quick", dry_run=True)
    over.set()
    beating.join()
    assert live.actions == []
    assert "somebody works on it" in live.left_alone[0]
    done = repair(url, level="quick")
    assert did(done) == {
        ("remove_orphan", "input_ids/c/99"),
        ("release_claim", "claims/00000099.0"),
    }


def test_temporary_files_of_unknown_owners_stay_for_a_day(stored: StoredSet) -> None:
    import os

    owner = Owner.current()
    place = stored.folder / ".tmp" / owner.token.replace(owner.host, "elsewhere")
    place.mkdir(parents=True)
    (place / "half").write_bytes(b"x")
    young = repair(str(stored.folder), level="quick")
    assert young.actions == []
    assert "a day old" in young.left_alone[0]
    for path in (place / "half", place):
        os.utime(path, (1.7e9, 1.7e9))
    done = mended(stored, level="quick")
    assert [action.kind for action in done.actions] == ["remove_temporary"]
    assert not place.exists()


def test_a_saved_report_says_nothing_of_what_was_done_again(stored: StoredSet) -> None:
    row = stored.rows_of(1)[0]
    flip(stored.object_of(2, row["sample_id"]), 10)
    flip(stored.object_of(2, stored.rows_of(0)[0]["sample_id"]), 10)
    report = Report.from_json(validate(str(stored.folder), "full").to_json())
    part = stored.parts()[1]
    part.write_bytes(part.read_bytes().replace(b'"written_at": "2', b'"written_at": "3'))
    done = repair(str(stored.folder), report=report)
    assert [action.shard for action in done.actions] == [0]
    assert any("shard 1 was done again" in sentence for sentence in done.left_alone)
    assert repair(str(stored.folder), report=report).actions == []


def test_a_report_is_the_same_after_json(stored: StoredSet) -> None:
    stored.object_of(2, stored.rows_of(0)[0]["sample_id"]).unlink()
    report = validate(str(stored.folder), "full")
    assert Report.from_json(report.to_json()) == report
    for text in ("", "[]", "{}", json.dumps({"level": "full"})):
        with pytest.raises(InputError, match="no report"):
            Report.from_json(text)


def test_what_no_repair_mends(stored: StoredSet) -> None:
    url = str(stored.folder)
    layers = Finding(kind="wrong_final_layer", detail="", advice="Extract again.")
    store = Finding(kind="object_unreadable", detail="", sample_id="s1", shard=0)
    done = repair(url, report=Report(url=url, level=Level.FULL, findings=[layers, store]))
    assert (done.ok, done.actions, done.beyond) == (False, [], [layers, store])
    model = Finding(kind="wrong_model", detail="another.")
    with pytest.raises(InputError, match="another model"):
        repair(url, report=Report(url=url, level=Level.ALL, findings=[model]))


def spoil(stored: StoredSet) -> None:
    """Something for every kind of action that a kill could cut in two."""
    (stored.folder / "input_ids/c/99").write_bytes(b"x")
    stored.object_of(9, stored.rows_of(1)[0]["sample_id"]).unlink()
    flip(stored.object_of(2, stored.rows_of(3)[0]["sample_id"]), 10)
    stored.parts()[2].write_bytes(b"")
    (stored.folder / "plan/0000.arrow").unlink()


KILLED = """
import os, signal, sys
from dataclasses import replace
from eagle3data.validation import repair as module
perform, left = module.perform, int(sys.argv[2])
def cut_short(actions, claims):
    global left
    at, left = left, left - len(actions)
    if 0 <= at < len(actions):
        die = lambda: os.kill(os.getpid(), signal.SIGKILL)
        actions = [*actions[:at], replace(actions[at], do=die)]
    return perform(actions, claims)
module.perform = cut_short
module.repair(sys.argv[1])
"""


def end_state(folder: Path) -> dict[str, bytes]:
    """What lies there, but for the time at which a tombstone was made."""
    return {
        name: b"" if name.startswith("quarantine/") else data for name, data in tree(folder).items()
    }


def test_kill_9_in_the_middle_and_again(stored: StoredSet, tmp_path: Path) -> None:
    import shutil

    spoil(stored)
    whole = tmp_path / "whole"
    shutil.copytree(stored.folder, whole)
    steps = len(repair(str(whole)).actions)
    wanted = end_state(whole)
    for step in (0, 1, 4, steps - 4, steps - 1):
        url = tmp_path / str(step)
        shutil.copytree(stored.folder, url)
        words = [sys.executable, "-c", KILLED, str(url), str(step)]
        assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
        assert repair(str(url)).ok
        assert end_state(url) == wanted
    append_again(StoredSet(whole))


def test_hidden_samples_are_planned_again_or_reported(stored: StoredSet) -> None:
    url = str(stored.folder)
    name = stored.rows()[0]["sample_id"]
    bury(Root(url), shard=0, sample_id=name, kind="chunk_corrupt", reason="a test")
    before = [(f.kind, f.sample_id) for f in validate(url, "quick").findings]
    assert before == [("index_hole", name)]
    append_again(stored)
    assert len(list_tombstones(Root(url))) == 1
    report = json.loads(validate(url, "full").to_json())
    assert (report["verdict"], report["hidden"]) == ("clean", 1)
    assert open_dataset(url).hidden == 1


def test_parts_that_only_the_gathered_index_knows_are_not_given_up(stored: StoredSet) -> None:
    """A download that was broken off before index/ came: its objects are no leftovers."""
    for part in (stored.folder / "index").glob("0*.arrow"):
        part.unlink()
    before = tree(stored.folder)
    with pytest.raises(InputError, match="Put the parts back"):
        repair(str(stored.folder))
    assert tree(stored.folder) == before


def test_the_part_of_another_shard_is_no_commit(stored: StoredSet) -> None:
    other = (stored.folder / "index/00000002.arrow").read_bytes()
    (stored.folder / "index/00000001.arrow").write_bytes(other)
    done = repair(str(stored.folder))
    assert ("drop_part", "index/00000001.arrow") in did(done)
    assert list_tombstones(Root(str(stored.folder))) == []


def test_the_report_of_another_set_is_refused(stored: StoredSet, tmp_path: Path) -> None:
    other = write_set(tmp_path / "other", SAMPLES, small_manifest())
    report = validate(other, "full")
    with pytest.raises(InputError, match="the report is of"):
        repair(str(stored.folder), report=report)
