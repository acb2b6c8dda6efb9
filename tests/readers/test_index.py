"""The index: what is gathered, newer, stale, damaged, hidden or cached; always the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from werkzeug.serving import WSGIRequestHandler

from eagle3data import open_dataset
from eagle3data.readers.index import read_index
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.index import TOKEN_COLUMNS, rows_digest
from eagle3data.storage import committed, gathered, layout
from eagle3data.storage.root import Root
from eagle3data.storage.tombstones import bury, list_tombstones, read_tombstone
from eagle3data.writers.data_set import consolidate_index
from tests.support import random_samples, same_sample, small_manifest, write_set

MANIFEST = small_manifest()
SAMPLES = random_samples(15, MANIFEST)
NAMES = [sample.sample_id for sample in SAMPLES]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return write_set(tmp_path / "set", SAMPLES, MANIFEST)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the objects that are read whole."""
    names: list[str] = []
    read = Root.read

    def counted(self: Root, name: str) -> bytes:
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(Root, "read", counted)
    return names


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """The files in a cache that is used for sets of any size."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(committed, "_WORTH_PARTS", 2)
    return lambda: [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.fixture
def remote(url: str, tmp_path: Path, cache: object) -> Root:
    """The same set in fsspec's store in memory."""
    root = Root(f"memory://{tmp_path.name}/set")
    for path in Path(url).rglob("*"):
        if path.is_file():
            root.fs.pipe_file(root.join(str(path.relative_to(url))), path.read_bytes())
    return root


def _names(root: Root) -> list[str | None]:
    return read_index(root).rows["sample_id"].to_pylist()


def _shard_of(root: Root, sample_id: str) -> int:
    for piece in committed.read_committed(root):
        for shard in piece.parts.shards.tolist():
            if sample_id in gathered.read_part(root, shard).rows["sample_id"].to_pylist():
                return int(shard)
    raise KeyError(sample_id)


def test_a_fresh_gathered_index_is_all_that_is_read(url: str, reads: list[str]) -> None:
    rows = read_index(Root(url)).rows
    assert rows["sample_id"].to_pylist() == NAMES
    assert reads == []


@pytest.mark.parametrize("seed", range(5))
def test_newer_parts_anywhere_between(url: str, reads: list[str], seed: int) -> None:
    root, whole = Root(url), read_index(Root(url))
    shards = layout.committed_shards(root)
    assert len(shards) > 5
    later = random.Random(seed).sample(shards, 3)
    data = {shard: root.read(layout.index_part(shard)) for shard in later}
    for name in [layout.ALL_PARTS, *map(layout.index_part, later)]:
        root.delete(name)
    consolidate_index(root)
    assert len(read_index(root).rows) < len(whole.rows)
    for shard, part in data.items():
        root.create(layout.index_part(shard), [part])
    reads.clear()
    found = read_index(root)
    assert sorted(reads) == sorted(map(layout.index_part, later))
    assert found.rows.equals(whole.rows)
    assert found.generation == whole.generation
    reads.clear()
    consolidate_index(root)
    assert sorted(reads) == sorted(map(layout.index_part, later))
    reads.clear()
    assert read_index(root).rows.equals(whole.rows)
    consolidate_index(root)
    assert reads == []


def test_batches_hold_whole_parts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root, whole = Root(url), read_index(Root(url))
    root.delete(layout.ALL_PARTS)
    monkeypatch.setattr(gathered, "_BATCH_ROWS", 4)
    consolidate_index(root)
    pieces = committed.gathered_pieces(root)
    assert len(pieces) > 2
    assert all(piece.parts.samples.sum() == len(piece.rows) for piece in pieces)
    assert read_index(root).rows.equals(whole.rows)


def test_rows_of_a_removed_part_are_not_served(url: str) -> None:
    root = Root(url)
    gone = gathered.read_part(root, 1).rows["sample_id"].to_pylist()
    before = read_index(root).generation
    root.delete(layout.index_part(1))
    found = read_index(root)
    assert found.rows["sample_id"].to_pylist() == [name for name in NAMES if name not in gone]
    assert found.generation != before


def _part_instead(url: str, data: bytes) -> bytes:
    return (Path(url) / layout.index_part(1)).read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda url, data: b"",
        lambda url, data: b"x" * 100,
        lambda url, data: data[: len(data) // 2],
        lambda url, data: data[:-1],
        _part_instead,
    ],
)
def test_a_damaged_gathered_index_is_no_loss(
    url: str, damage: Callable[[str, bytes], bytes]
) -> None:
    whole = read_index(Root(url))
    root = Root(url)
    root.replace(layout.ALL_PARTS, damage(url, root.read(layout.ALL_PARTS)))
    found = read_index(root)
    assert found.rows.equals(whole.rows)
    assert found.generation == whole.generation
    consolidate_index(root)
    assert committed.gathered_pieces(root)


def test_flipped_bits_change_no_row(url: str) -> None:
    """Outside the token ids and masks, which are compared with the shards when they are read."""
    whole = read_index(Root(url))
    tokens = list(TOKEN_COLUMNS)
    data = Root(url).read(layout.ALL_PARTS)
    rng = random.Random(0)
    unseen = 0
    for _ in range(300):
        place = rng.randrange(len(data))
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        Root(url).replace(layout.ALL_PARTS, flipped)
        unseen += bool(committed.gathered_pieces(Root(url)))
        found = read_index(Root(url))
        assert found.rows.drop_columns(tokens).equals(whole.rows.drop_columns(tokens)), place
        assert found.generation == whole.generation
    assert unseen < 300


def test_a_changed_part_is_an_error(url: str) -> None:
    root = Root(url)
    root.delete(layout.ALL_PARTS)
    table, facts = layout.read_table(root, layout.index_part(1))
    lengths = pa.array(table["length"].to_numpy() + 1, pa.int32())
    at = table.schema.get_field_index("length")
    changed = table.set_column(at, table.schema.field(at), lengths)
    root.replace(layout.index_part(1), layout.encode_table(changed, facts))
    with pytest.raises(CorruptionError, match=r"index_changed.*index/00000001\.arrow"):
        read_index(root)


def test_unknown_columns_are_ignored(url: str) -> None:
    root, whole = Root(url), read_index(Root(url))
    root.delete(layout.ALL_PARTS)
    name = layout.index_part(1)
    table, facts = layout.read_table(root, name)
    wider = table.append_column("later", pa.array(range(table.num_rows)))
    root.replace(name, layout.encode_table(wider, facts))
    assert read_index(root).rows.equals(whole.rows)


def test_a_part_without_rows(url: str) -> None:
    root, whole = Root(url), read_index(Root(url))
    empty = whole.rows.slice(0, 0)
    shard = layout.committed_shards(root)[-1] + 1
    facts = {"shard": shard, "rows": rows_digest(empty)}
    root.create(layout.index_part(shard), [layout.encode_table(empty, facts)])
    assert read_index(root).rows.equals(whole.rows)
    assert read_index(root).generation != whole.generation
    consolidate_index(root)
    assert read_index(root).rows.equals(whole.rows)


def test_a_tombstone_hides_a_row(url: str) -> None:
    root, whole = Root(url), read_index(Root(url))
    for name in ("s0", "s7", "s14"):
        bury(root, shard=_shard_of(root, name), sample_id=name, kind="nonfinite", reason="NaN")
    kept = [name for name in NAMES if name not in {"s0", "s7", "s14"}]
    dataset = open_dataset(url)
    assert dataset.index["sample_id"].to_pylist() == kept
    assert dataset.generation != whole.generation
    assert same_sample(dataset.get("s8"), SAMPLES[8])
    with pytest.raises(KeyError):
        dataset.get("s7")
    assert read_index(root).hidden == 3
    root.delete(layout.ALL_PARTS)
    assert read_index(root).rows.equals(dataset.index)
    assert read_index(root).generation == dataset.generation


def test_a_tombstone_hides_in_its_own_shard_only(url: str) -> None:
    root = Root(url)
    bury(root, shard=_shard_of(root, "s7") + 1, sample_id="s7", kind="nonfinite", reason="NaN")
    assert "s7" in _names(root)


def test_tombstones_are_kept_and_a_damaged_one_still_hides(url: str) -> None:
    root = Root(url)
    shard = _shard_of(root, "s7")
    first = bury(root, shard=shard, sample_id="s7", kind="nonfinite", reason="NaN")
    assert bury(root, shard=shard, sample_id="s7", kind="all_zero", reason="zero") == first
    assert list_tombstones(root) == [first]
    assert read_tombstone(root, first)["kind"] == "nonfinite"
    root.replace(first.name, b"{")
    assert "s7" not in _names(root)
    with pytest.raises(CorruptionError, match="tombstone_corrupt"):
        read_tombstone(root, first)


def test_a_store_is_read_from_its_gathered_index(remote: Root, reads: list[str]) -> None:
    assert _names(remote) == NAMES
    assert reads == []


def test_a_store_without_one_is_gathered_in_the_cache(
    remote: Root, reads: list[str], cache: Callable[[], list[Path]]
) -> None:
    whole = read_index(remote)
    remote.delete(layout.ALL_PARTS)
    assert read_index(remote).rows.equals(whole.rows)
    assert len(cache()) == 1
    reads.clear()
    found = read_index(remote)
    assert reads == []
    assert found.rows.equals(whole.rows)
    assert found.generation == whole.generation
    (path,) = cache()
    truncated = path.read_bytes()[:-50]
    path.unlink()  # it is still mapped
    path.write_bytes(truncated)
    assert read_index(remote).rows.equals(whole.rows)
    reads.clear()
    assert read_index(remote).rows.equals(whole.rows)
    assert reads == []


def test_a_part_that_was_done_again_is_not_served_from_the_cache(
    remote: Root, cache: Callable[[], list[Path]]
) -> None:
    remote.delete(layout.ALL_PARTS)
    read_index(remote)
    table, facts = layout.read_table(remote, layout.index_part(1))
    at = table.schema.get_field_index("source")
    again = table.set_column(at, table.schema.field(at), pa.array(["again"] * table.num_rows))
    facts = {**facts, "rows": rows_digest(again)}
    remote.delete(layout.index_part(1))
    remote.create(layout.index_part(1), [layout.encode_table(again, facts)])
    assert read_index(remote).rows["source"].to_pylist().count("again") == table.num_rows
    remote.delete(layout.index_part(1))
    assert len(read_index(remote).rows) == len(NAMES) - table.num_rows
    assert len(cache()) == 1


def test_a_cache_that_cannot_be_written_is_done_without(
    remote: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.delete(layout.ALL_PARTS)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _names(remote) == NAMES


def test_a_read_only_folder_is_gathered_in_the_cache(
    url: str, reads: list[str], cache: Callable[[], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(url)
    root.delete(layout.ALL_PARTS)
    # What access(2) says of a mount without write permission; root may write anywhere else.
    monkeypatch.setattr("os.access", lambda *args, **kwargs: False)
    assert _names(root) == NAMES
    reads.clear()
    assert _names(root) == NAMES
    assert reads == []
    assert len(cache()) == 1
    assert not root.exists(layout.ALL_PARTS)


@pytest.mark.parametrize("gathered_too", [True, False])
def test_a_handful_of_requests_opens_a_set_in_s3(
    bucket: str,
    cache: Callable[[], list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    gathered_too: bool,
) -> None:
    url = write_set(f"{bucket}/opened-{gathered_too}", SAMPLES, MANIFEST)
    if not gathered_too:
        Root(url).delete(layout.ALL_PARTS)
        read_index(Root(url))
        assert len(cache()) == 1
    requests: list[str] = []

    def log(self: WSGIRequestHandler, *args: object) -> None:
        requests.append(self.requestline)

    monkeypatch.setattr(WSGIRequestHandler, "log_request", log)
    assert open_dataset(url).index["sample_id"].to_pylist() == NAMES
    assert 0 < len(requests) <= 10, requests
    assert not any("/index/0" in request for request in requests)
