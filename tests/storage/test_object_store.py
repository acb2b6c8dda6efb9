"""Objects in a real S3 server on loopback, on a good way and on a bad one, and in memory."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import boto3
import fsspec
import pytest

from eagle3data.schema.digest import crc32c
from eagle3data.schema.errors import AlreadyExistsError, InputError
from eagle3data.storage import retry, s3_client, s3_store
from eagle3data.storage.object_store import ObjectStore, RemoteObject, open_store
from tests.storage.faulty_proxy import Fault, FaultyProxy

PART = 5 << 20
"""S3 takes no smaller part, but for the last."""

SMALL = bytes(range(256)) * 40
LARGE = SMALL * 600
"""More than one part."""

KILLED = """
import os, signal, sys
import fsspec
from eagle3data.storage import s3_store
from eagle3data.storage.object_store import open_store
s3_store.PART_BYTES = 5 << 20
fs = fsspec.filesystem("s3", endpoint_url=sys.argv[1])
upload = open_store(fs, "s3://states").upload(sys.argv[2])
upload.write([bytes(6 << 20)])
[part.result() for part in upload._parts]
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def proxy(endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(s3_store, "PART_BYTES", PART)
    with FaultyProxy(endpoint).running() as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultyProxy) -> s3_store.S3Store:
    return _store_at(proxy.url)


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"states/{request.node.name}"


def _store_at(url: str) -> s3_store.S3Store:
    fs = fsspec.filesystem("s3", endpoint_url=url, skip_instance_cache=True)
    store = open_store(fs, "s3://states")
    assert isinstance(store, s3_store.S3Store)
    return store


def _put(store: ObjectStore, path: str, data: bytes) -> str:
    upload = store.upload(path)
    upload.write([data[:100], memoryview(data)[100:]])
    return upload.commit()


def _unfinished(endpoint: str) -> list[str]:
    found = boto3.client("s3").list_multipart_uploads(Bucket="states")
    return [upload["Key"] for upload in found.get("Uploads", [])]


def test_ranges_are_read_and_end_with_the_object(store: s3_store.S3Store, path: str) -> None:
    _put(store, path, SMALL)
    found = RemoteObject(store, path)
    assert found.size == len(SMALL)
    assert found.read(3, 300).tobytes() == SMALL[3:300]
    assert found.read(len(SMALL) - 5, len(SMALL) + 5).tobytes() == SMALL[-5:]
    assert found.read(len(SMALL), len(SMALL) + 5).tobytes() == b""
    assert store.read(path) == SMALL
    with ThreadPoolExecutor(8) as threads:
        reads = list(threads.map(lambda at: found.read(at, at + 64).tobytes(), range(64)))
    assert reads == [SMALL[at : at + 64] for at in range(64)]


def test_an_object_that_has_become_shorter_gives_fewer_bytes(
    store: s3_store.S3Store, path: str
) -> None:
    _put(store, path, SMALL)
    found = RemoteObject(store, path)
    store.replace(path, SMALL[:100])
    assert found.read(50, 200).tobytes() == SMALL[50:100]


def test_names_with_spaces_and_signs(store: s3_store.S3Store) -> None:
    path = "states/a b/ü%20+&/c=d#e?f"
    _put(store, path, SMALL)
    assert RemoteObject(store, path).read(0, 9).tobytes() == SMALL[:9]
    assert store.exists(path)


def test_obstore_reads(store: s3_store.S3Store) -> None:
    session = s3_client.make_session(store.fs)
    client = s3_client.make_client(store.fs, session)
    assert s3_client.make_reader(store.fs, "states", session, client) is not None


def test_what_obstore_may_not_know_is_read_by_s3fs(proxy: FaultyProxy, path: str) -> None:
    _put(_store_at(proxy.url), path, SMALL)
    fs = fsspec.filesystem(
        "s3", endpoint_url=proxy.url, config_kwargs={"s3": {"addressing_style": "path"}}
    )
    session = s3_client.make_session(fs)
    client = s3_client.make_client(fs, session)
    assert s3_client.make_reader(fs, "states", session, client) is None
    store = open_store(fs, "s3://states")
    assert store.read_range(path, 3, 300).tobytes() == SMALL[3:300]
    assert store.read(path) == SMALL


@pytest.mark.parametrize(
    "fault",
    [
        Fault("GET", "refuse"),
        Fault("GET", "refuse", status=500, code="InternalError", times=3),
        Fault("GET", "reset"),
        Fault("GET", "lost"),
        Fault("GET", "short"),
    ],
    ids=["slow_down", "internal_error", "reset", "lost", "short"],
)
def test_a_failed_read_is_tried_again(
    proxy: FaultyProxy, store: s3_store.S3Store, path: str, fault: Fault
) -> None:
    _put(store, path, SMALL)
    proxy.faults = [fault]
    assert store.read_range(path, 3, 3000).tobytes() == SMALL[3:3000]
    assert fault.times == 0
    fault.times = 1
    assert store.read(path) == SMALL
    assert fault.times == 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_retries_are_bounded(
    proxy: FaultyProxy, store: s3_store.S3Store, path: str, method: str
) -> None:
    _put(store, path, SMALL)
    proxy.faults = [Fault(method, "refuse", times=100)]
    read: Callable[[], object] = (
        (lambda: store.read_range(path, 0, 9)) if method == "GET" else (lambda: store.size(path))
    )
    with pytest.raises(OSError, match="503|SlowDown|Service"):
        read()
    assert proxy.count(method) == retry.ATTEMPTS


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(404, "NoSuchKey", FileNotFoundError), (403, "AccessDenied", PermissionError)],
)
def test_an_answer_is_not_asked_for_again(
    proxy: FaultyProxy,
    store: s3_store.S3Store,
    path: str,
    method: str,
    status: int,
    code: str,
    error: type[OSError],
) -> None:
    proxy.faults = [Fault(method, "refuse", status=status, code=code, times=100)]
    with pytest.raises(error):
        store.read_range(path, 0, 9) if method == "GET" else store.size(path)
    assert proxy.count(method) == 1


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "small", "multipart"])
def test_creation_is_exclusive(store: s3_store.S3Store, path: str, data: bytes) -> None:
    assert store.identity(path) is None
    mine = _put(store, path, data)
    assert store.identity(path) == mine
    assert store.read(path) == data
    for other in (b"other", data, bytes(PART + 1)):
        with pytest.raises(AlreadyExistsError):
            _put(store, path, other)
    assert store.identity(path) == mine
    assert store.read(path) == data


def test_the_same_bytes_again_are_another_object(store: s3_store.S3Store, path: str) -> None:
    first = _put(store, path, SMALL)
    store.delete(path)
    store.delete(path)
    assert not store.exists(path)
    assert _put(store, path, SMALL) != first


def test_exists_is_not_fooled_by_an_earlier_listing(endpoint: str, store: s3_store.S3Store) -> None:
    _put(store, "states/listed/a", SMALL)
    store.fs.ls("states/listed")
    _put(_store_at(endpoint), "states/listed/b", SMALL)
    assert store.exists("states/listed/b")


def test_buffers_may_be_reused_after_write(store: s3_store.S3Store, path: str) -> None:
    upload = store.upload(path)
    buffer = bytearray(PART + 10)
    for value in range(3):
        buffer[:] = bytes([value]) * len(buffer)
        upload.write([buffer])
    upload.commit()
    expected = b"".join(bytes([value]) * len(buffer) for value in range(3))
    assert store.read(path) == expected


def test_parts_carry_their_checksum_and_the_end_that_of_the_whole(
    proxy: FaultyProxy, store: s3_store.S3Store, path: str
) -> None:
    _put(store, path, LARGE)
    parts = [seen for seen in proxy.seen if seen[0] == "PUT"]
    assert len(parts) == 2
    assert all("x-amz-checksum-crc32c" in headers for _, _, headers in parts)
    _, _, end = [seen for seen in proxy.seen if seen[0] == "POST"][-1]
    stored = boto3.client("s3").head_object(
        Bucket="states", Key=path.split("/", 1)[1], ChecksumMode="ENABLED"
    )
    assert stored["ChecksumType"] == "FULL_OBJECT"
    assert (
        end["x-amz-checksum-crc32c"] == base64.b64encode(crc32c(LARGE).to_bytes(4, "big")).decode()
    )
    assert end["If-None-Match"] == "*"


def test_a_store_that_knows_no_whole_checksum_gets_one_a_part(
    proxy: FaultyProxy, store: s3_store.S3Store, path: str
) -> None:
    proxy.faults = [Fault("POST", "refuse", "uploads", status=400, code="InvalidRequest")]
    _put(store, path, LARGE)
    assert store.read(path) == LARGE
    assert proxy.count("POST", "uploads") == 2


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (SMALL, Fault("PUT", "refuse")),
        (SMALL, Fault("PUT", "reset")),
        (SMALL, Fault("PUT", "lost")),
        (SMALL, Fault("PUT", "damage")),
        (SMALL, Fault("PUT", "refuse", status=409, code="ConditionalRequestConflict")),
        (LARGE, Fault("POST", "refuse", "uploads")),
        (LARGE, Fault("PUT", "reset", "partNumber=2")),
        (LARGE, Fault("PUT", "lost", "partNumber=2")),
        (LARGE, Fault("PUT", "damage", "partNumber=2")),
        (LARGE, Fault("POST", "reset", "uploadId")),
        (LARGE, Fault("POST", "lost", "uploadId")),
    ],
    ids=lambda value: f"{value.kind}_{value.code}" if isinstance(value, Fault) else str(len(value)),
)
def test_a_failed_write_is_tried_again_and_is_ours(
    proxy: FaultyProxy, store: s3_store.S3Store, path: str, data: bytes, fault: Fault
) -> None:
    proxy.faults = [fault]
    mine = _put(store, path, data)
    assert fault.times == 0
    assert store.identity(path) == mine
    assert store.read(path) == data


@pytest.mark.parametrize("code", ["NoSuchUpload", "PreconditionFailed"])
def test_an_end_that_was_done_but_is_then_refused_is_ours(
    proxy: FaultyProxy, store: s3_store.S3Store, path: str, code: str
) -> None:
    status = 404 if code == "NoSuchUpload" else 412
    proxy.faults = [
        Fault("POST", "lost", "uploadId"),
        Fault("POST", "refuse", "uploadId", status=status, code=code),
    ]
    mine = _put(store, path, LARGE)
    assert not any(fault.times for fault in proxy.faults)
    assert store.identity(path) == mine


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "multipart"])
def test_an_object_of_another_with_the_same_bytes_is_not_ours(
    endpoint: str, proxy: FaultyProxy, store: s3_store.S3Store, path: str, data: bytes
) -> None:
    upload = store.upload(path)
    upload.write([data])
    theirs = _put(_store_at(endpoint), path, data)
    proxy.faults = [Fault("PUT" if data is SMALL else "POST", "reset")]
    with pytest.raises(AlreadyExistsError):
        upload.commit()
    assert store.identity(path) == theirs


def test_a_write_that_can_not_be_done_says_why_and_leaves_nothing(
    endpoint: str, proxy: FaultyProxy, store: s3_store.S3Store, path: str
) -> None:
    proxy.faults = [
        Fault("PUT", "refuse", "partNumber=2", status=403, code="AccessDenied", times=99)
    ]
    with pytest.raises(InputError, match="AccessDenied"):
        _put(store, path, LARGE)
    assert not store.exists(path)
    assert path.split("/", 1)[1] not in _unfinished(endpoint)


def test_an_aborted_upload_is_never_seen(endpoint: str, store: s3_store.S3Store, path: str) -> None:
    upload = store.upload(path)
    upload.write([LARGE])
    assert not store.exists(path)
    assert path.split("/", 1)[1] in _unfinished(endpoint)
    upload.abort()
    upload.abort()
    assert not store.exists(path)
    assert path.split("/", 1)[1] not in _unfinished(endpoint)


def test_a_killed_upload_is_never_seen(endpoint: str, store: s3_store.S3Store, path: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, endpoint, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.split("/", 1)[1] in _unfinished(endpoint)
    assert not store.exists(path)
    assert store.fs.find(path) == []
    mine = _put(store, path, LARGE)
    assert store.identity(path) == mine


@pytest.mark.parametrize("size", [50_000, PART + 50_000], ids=["small", "multipart"])
def test_of_two_writers_one_wins_whole(proxy: FaultyProxy, path: str, size: int) -> None:
    stores = [_store_at(proxy.url) for _ in range(4)]
    _race(stores, path, size)


def test_of_two_writers_in_memory_one_wins_whole() -> None:
    store = open_store(fsspec.filesystem("memory"), "memory://states")
    for attempt in range(20):
        _race([store] * 8, f"/states/raced{attempt}", 1000)


def _race(stores: Sequence[ObjectStore], path: str, size: int) -> None:
    """Upload different bytes to one name at once; one must win, with all of its bytes."""
    barrier = threading.Barrier(len(stores))

    def write(number: int) -> str | None:
        upload = stores[number].upload(path)
        upload.write([bytes([number]) * size])
        barrier.wait()
        try:
            return upload.commit()
        except AlreadyExistsError:
            return None

    with ThreadPoolExecutor(len(stores)) as threads:
        outcomes = list(threads.map(write, range(len(stores))))
    winners = [number for number, identity in enumerate(outcomes) if identity]
    assert len(winners) == 1
    store = stores[0]
    assert store.identity(path) == outcomes[winners[0]]
    assert store.read(path) == bytes([winners[0]]) * size


def test_memory_reads_writes_and_deletes() -> None:
    store = open_store(fsspec.filesystem("memory"), "memory://states")
    path = "/states/object"
    store.delete(path)
    with pytest.raises(FileNotFoundError):
        RemoteObject(store, path)
    mine = _put(store, path, SMALL)
    assert store.identity(path) == mine
    found = RemoteObject(store, path)
    assert found.read(5, 70).tobytes() == SMALL[5:70]
    store.replace(path, SMALL[:10])
    assert found.read(5, 70).tobytes() == SMALL[5:10]
    store.delete(path)
    assert not store.exists(path)
    assert store.identity(path) is None


def test_a_file_system_that_can_not_create_exclusively_is_refused() -> None:
    store = open_store(fsspec.filesystem("http"), "http://127.0.0.1:9/states")
    with pytest.raises(InputError, match="only if there is none"):
        store.upload("http://127.0.0.1:9/states/object")
