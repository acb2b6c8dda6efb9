"""S3: ranged reads, and uploads that the store checks, completes whole and never overwrites with.

Every object carries the id of the upload that made it. So a writer whose answer was lost finds
out whether the object is its own, and two attempts with the same bytes are told apart.
"""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from eagle3data.schema.digest import combine_crc32c, crc32c
from eagle3data.schema.errors import AlreadyExistsError, InputError, SpaceError
from eagle3data.storage import s3_client
from eagle3data.storage.local import Buffer
from eagle3data.storage.object_store import Bytes, ObjectStore
from eagle3data.storage.retry import with_retries

PART_BYTES = 16 << 20
PARTS_IN_FLIGHT = 3
"""One upload holds at most one part more than these in memory."""

_UPLOAD = "eagle3data-upload"
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "EntityTooLarge"}
_EXCLUSIVE = {"IfNoneMatch": "*"}
_OUTCOME_TO_SETTLE = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"}

Fetched = TypeVar("Fetched")


class S3Store(ObjectStore):
    """The objects of one bucket; connects at the first request."""

    def __init__(self, fs: Any, url: str) -> None:
        super().__init__(fs, url)
        self._bucket = fs.split_path(url)[0]
        self._connecting = threading.Lock()
        self._connection: tuple[Any, Any] | None = None

    def size(self, path: str) -> int:
        found = self.head(path)
        if found is None:
            raise FileNotFoundError(f"{path} is not there")
        return int(found["ContentLength"])

    def identity(self, path: str) -> str | None:
        found = self.head(path)
        return None if found is None else _identity(found, upload_id(found))

    def read(self, path: str) -> bytes:
        def fetch(obstore: Any, reader: Any) -> bytes:
            data: bytes = obstore.get(reader, self._key(path)).bytes().to_bytes()
            return data

        return self._fetch(fetch, lambda: ObjectStore.read(self, path))

    def read_range(self, path: str, start: int, stop: int) -> Bytes:
        def fetch(obstore: Any, reader: Any) -> Bytes:
            data = obstore.get_range(reader, self._key(path), start=start, end=stop)
            return np.frombuffer(data, np.uint8)

        return self._fetch(fetch, lambda: ObjectStore.read_range(self, path, start, stop))

    def replace(self, path: str, data: Buffer) -> None:
        with self.explained(path):
            self.call(
                "put_object",
                path,
                Body=bytes(data),
                Metadata={_UPLOAD: uuid.uuid4().hex},
                **_checked(crc32c(data)),
            )

    def delete(self, path: str) -> None:
        with _as_os_error(path):
            self.call("delete_object", path)

    def upload(self, path: str) -> S3Upload:
        return S3Upload(self, path)

    def head(self, path: str) -> dict[str, Any] | None:
        """S3's answer about an object, or None where there is none.

        Raises:
            PermissionError, OSError: the store can't be read.
        """
        try:
            with _as_os_error(path):
                return self.call("head_object", path)
        except FileNotFoundError:
            return None

    def call(self, operation: str, path: str, **arguments: Any) -> dict[str, Any]:
        """One request about an object, made again while the failure may pass.

        Raises:
            botocore's ClientError or BotoCoreError: the last failure.
        """
        client, _ = self._connected()
        members = client.meta.service_model.operation_model(
            client.meta.method_to_api_mapping[operation]
        ).input_shape.members
        options = {**self.fs.s3_additional_kwargs, **self.fs.req_kw}
        arguments |= {name: value for name, value in options.items() if name in members}
        answer: dict[str, Any] = with_retries(
            lambda: getattr(client, operation)(
                Bucket=self._bucket, Key=self._key(path), **arguments
            ),
            errors=s3_client.ERRORS,
            is_transient=s3_client.is_transient,
        )
        return answer

    @contextmanager
    def explained(self, path: str) -> Iterator[None]:
        """Turn what a failed write raises into an error for the user."""
        try:
            yield
        except s3_client.ERRORS as error:
            if s3_client.error_code(error) in _FULL:
                raise SpaceError(
                    f"no space left at {self.url} ({error}). What is committed stays whole: free "
                    "some space, and run the same command again to continue."
                ) from None
            raise InputError(f"{self.url}: {path} can't be written: {error}") from None

    def _key(self, path: str) -> str:
        key: str = self.fs.split_path(path)[1]
        return key

    def _connected(self) -> tuple[Any, Any]:
        """The botocore client and, where it can stand in for s3fs, the obstore reader."""
        with self._connecting:
            if self._connection is None:
                session = s3_client.make_session(self.fs)
                client = s3_client.make_client(self.fs, session)
                reader = s3_client.make_reader(self.fs, self._bucket, session, client)
                self._connection = client, reader
            return self._connection

    def _fetch(
        self, fetch: Callable[[Any, Any], Fetched], otherwise: Callable[[], Fetched]
    ) -> Fetched:
        _, reader = self._connected()
        if reader is None:
            return otherwise()
        import obstore

        try:
            return fetch(obstore, reader)
        except obstore.exceptions.BaseError as error:
            refused = (
                obstore.exceptions.PermissionDeniedError,
                obstore.exceptions.UnauthenticatedError,
            )
            kind = PermissionError if isinstance(error, refused) else OSError
            # What follows the first line is obstore's own state.
            raise kind(f"{self.url} can't be read: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True)
class _Part:
    """One uploaded part: its number from 1, S3's tag of it, its CRC32C and bytes."""

    number: int
    etag: str
    crc: int
    nbytes: int


class S3Upload:
    """One object on its way; small ones go in one request, others in parts as they fill.

    What a killed process leaves is an unfinished multipart upload: not an object, seen by no
    reader, and removed by the bucket's lifecycle rule for such.
    """

    def __init__(self, store: S3Store, path: str) -> None:
        self._store = store
        self._path = path
        self._id = uuid.uuid4().hex
        self._buffer = bytearray()
        self._multipart: str | None = None
        self._whole_checksum = False
        self._parts: list[Future[_Part]] = []
        self._threads: ThreadPoolExecutor | None = None

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append buffers, copied; waits while `PARTS_IN_FLIGHT` parts are on their way.

        Raises:
            SpaceError, InputError: the store can't be written.
        """
        for part in parts:
            left = memoryview(part)
            left = left.cast("B") if left.nbytes else left
            while len(left):
                if len(self._buffer) == PART_BYTES:
                    with self._store.explained(self._path):
                        self._send_buffer()
                room = PART_BYTES - len(self._buffer)
                self._buffer += left[:room]
                left = left[room:]

    def commit(self) -> str:
        """Give it its name, exclusively; returns its identity (see `Root.identity`).

        Raises:
            AlreadyExistsError: the name is taken; what is there stays as it is.
            SpaceError, InputError: the store can't be written.
        """
        try:
            with self._store.explained(self._path):
                try:
                    if self._multipart is None:
                        return self._put(_EXCLUSIVE)
                    return self._complete(_EXCLUSIVE)
                except s3_client.ERRORS as error:
                    return self._settle(error)
        finally:
            self.abort()

    def replace(self) -> None:
        """Put it in place of what has the name.

        Raises:
            SpaceError, InputError: the store can't be written.
        """
        try:
            with self._store.explained(self._path):
                _ = self._put({}) if self._multipart is None else self._complete({})
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop what was not committed; after `commit` this does nothing."""
        self._buffer = bytearray()
        if self._threads is not None:
            # A part that arrives after the abort would stay.
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        if self._multipart is not None:
            multipart, self._multipart = self._multipart, None
            # Nobody sees what stays behind if this fails.
            with suppress(*s3_client.ERRORS):
                self._store.call("abort_multipart_upload", self._path, UploadId=multipart)

    def _put(self, condition: Mapping[str, str]) -> str:
        answer = self._store.call(
            "put_object",
            self._path,
            Body=bytes(self._buffer),
            Metadata={_UPLOAD: self._id},
            **condition,
            **_checked(crc32c(self._buffer)),
        )
        return _identity(answer, self._id)

    def _complete(self, condition: Mapping[str, str]) -> str:
        if self._buffer:
            self._send_buffer()
        parts = [part.result() for part in self._parts]
        whole: dict[str, Any] = {"MpuObjectSize": sum(part.nbytes for part in parts)}
        if self._whole_checksum:
            crc = 0
            for part in parts:
                crc = combine_crc32c(crc, part.crc, part.nbytes)
            whole |= {"ChecksumType": "FULL_OBJECT", "ChecksumCRC32C": _base64(crc)}
        answer = self._store.call(
            "complete_multipart_upload",
            self._path,
            UploadId=self._multipart,
            MultipartUpload={
                "Parts": [
                    {
                        "PartNumber": part.number,
                        "ETag": part.etag,
                        "ChecksumCRC32C": _base64(part.crc),
                    }
                    for part in parts
                ]
            },
            **whole,
            **condition,
        )
        self._multipart = None
        return _identity(answer, self._id)

    def _settle(self, error: Exception) -> str:
        """Find out whose the object is, when the answer to ours was lost or is a refusal.

        A request whose answer was lost may have been done; made again, it is then refused
        because of itself.
        """
        code = s3_client.error_code(error)
        if code not in _OUTCOME_TO_SETTLE and not s3_client.is_transient(error):
            raise error
        try:
            found = self._store.head(self._path)
        except OSError:
            raise error from None
        if found is None:
            raise error
        if upload_id(found) != self._id:
            raise AlreadyExistsError(f"{self._store.url}: {self._path} exists already.")
        return _identity(found, self._id)

    def _send_buffer(self) -> None:
        if self._threads is None:
            self._begin_multipart()
            self._threads = ThreadPoolExecutor(PARTS_IN_FLIGHT)
        if len(self._parts) >= PARTS_IN_FLIGHT:
            self._parts[-PARTS_IN_FLIGHT].result()
        data, self._buffer = self._buffer, bytearray()
        number = len(self._parts) + 1
        self._parts.append(self._threads.submit(self._send_part, number, data))

    def _begin_multipart(self) -> None:
        arguments = {"Metadata": {_UPLOAD: self._id}, "ChecksumAlgorithm": "CRC32C"}
        begin = "create_multipart_upload"
        try:
            answer = self._store.call(begin, self._path, ChecksumType="FULL_OBJECT", **arguments)
        except s3_client.ERRORS as error:
            if s3_client.error_status(error) not in {400, 501}:
                raise
            # A store that only knows checksums part by part.
            answer = self._store.call(begin, self._path, **arguments)
        self._multipart = answer["UploadId"]
        self._whole_checksum = answer.get("ChecksumType") == "FULL_OBJECT"

    def _send_part(self, number: int, data: bytearray) -> _Part:
        crc = crc32c(data)
        answer = self._store.call(
            "upload_part",
            self._path,
            UploadId=self._multipart,
            PartNumber=number,
            Body=data,
            **_checked(crc),
        )
        return _Part(number, answer["ETag"], crc, len(data))


def upload_id(head: dict[str, Any]) -> str:
    """Which upload made an object, from S3's answer about it; else when it was made."""
    return str(head["Metadata"].get(_UPLOAD) or head["LastModified"].isoformat())


def _identity(answer: dict[str, Any], upload: str) -> str:
    return f"{answer['ETag'].strip(chr(34))}:{upload}"


def _checked(crc: int) -> dict[str, str]:
    """Arguments with which the store refuses a body that is not what was sent."""
    return {"ChecksumAlgorithm": "CRC32C", "ChecksumCRC32C": _base64(crc)}


def _base64(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Turn what a failed request about an object raises into Python's own error."""
    try:
        yield
    except s3_client.ERRORS as error:
        status = s3_client.error_status(error)
        if status == 404:
            raise FileNotFoundError(f"{path} is not there") from None
        kind = PermissionError if status in {401, 403} else OSError
        raise kind(f"{path}: {error}") from None
