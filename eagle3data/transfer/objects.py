"""One shard object, copied byte for byte, every checksum in and on it compared on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.digest import combine_crc32c, crc32c
from eagle3data.schema.errors import CorruptionError
from eagle3data.storage.arrays import chunk_codec
from eagle3data.storage.codecs import CHECKSUM_BYTES
from eagle3data.storage.local import Buffer
from eagle3data.storage.root import StoredObject
from eagle3data.storage.shard_decoder import ShardDecoder
from eagle3data.storage.shard_encoder import NOT_STORED, chunks_crc32c

_PIECE_BYTES = 8 << 20
_PIECES_AHEAD = 3
"""An object in transfer takes one piece more than these of memory, at most."""


class Sink(Protocol):
    """Where an object's bytes go; an upload is one."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append buffers; they may be changed after the call."""


@dataclass(frozen=True, kw_only=True)
class ObjectFacts:
    """What an index part says of one object of its shard.

    Attributes:
        array: whose shard it is.
        shard: its number.
        path: its name below the root.
        nbytes: of the object.
        crc32c: of the whole object.
        chunks_crc32c: see `shard_encoder.chunks_crc32c`.
        owners: sample ids by chunk number, to be named in errors.
    """

    array: str
    shard: int
    path: str
    nbytes: int
    crc32c: int
    chunks_crc32c: int
    owners: Mapping[int, str] = field(repr=False)


@dataclass(frozen=True)
class _Piece:
    """Some bytes of an object, and the chunks that lie in them: number, first byte, bytes."""

    start: int
    stop: int
    chunks: list[tuple[int, int, int]]


class ObjectCopy:
    """Reads one object and hands its bytes on; a wrong one ends in an error before the end."""

    def __init__(self, source: Dataset, facts: ObjectFacts) -> None:
        """Open the object and check its index.

        Raises:
            CorruptionError: it is gone, of another size, or its index is damaged.
        """
        self._url, self._facts = source.url, facts
        decoder = ShardDecoder(
            source.root,
            chunk_codec(source.manifest, facts.array),
            array=facts.array,
            shard=facts.shard,
            name=facts.path,
            chunks=source.manifest.storage.axis.chunks_per_shard,
        )
        self._index = decoder.index
        self._object: StoredObject = source.root.open(facts.path)
        self._crc = 0
        self._checksums: dict[int, int] = {}
        if self._object.size != facts.nbytes:
            kind = "object_truncated" if self._object.size < facts.nbytes else "object_changed"
            raise self._corrupt(
                kind, f"it has {self._object.size} bytes, {facts.nbytes} were committed"
            )

    def write_to(self, sink: Sink, pool: Executor, on_bytes: Callable[[int], None]) -> None:
        """Copy everything; pieces are read ahead by the pool's threads.

        Raises:
            CorruptionError: bytes that are not what was committed.
            SpaceError, InputError: the target can't be written.
        """
        for piece, data in _ahead(pool, self._pieces(), self._read):
            self._check(piece, data)
            sink.write([data.data])
            on_bytes(len(data))
        facts = self._facts
        if self._crc != facts.crc32c or self._chunks_crc32c != facts.chunks_crc32c:
            raise self._corrupt(
                "object_changed",
                f"{facts.path} holds whole chunks, but not those that were committed: the CRC32C "
                f"over it is {self._crc:08x}, committed was {facts.crc32c:08x}; over its chunks' "
                f"{self._chunks_crc32c:08x}, committed was {facts.chunks_crc32c:08x}",
            )

    @property
    def _chunks_crc32c(self) -> int:
        return chunks_crc32c(self._checksums[number] for number in sorted(self._checksums))

    def _pieces(self) -> Iterator[_Piece]:
        """The object in order, cut between chunks."""
        stored = [
            (number, offset, size)
            for number, (offset, size) in enumerate(self._index.tolist())
            if offset != NOT_STORED
        ]
        start = stop = 0
        chunks: list[tuple[int, int, int]] = []
        for number, offset, size in sorted(stored, key=lambda entry: entry[1]):
            if offset < stop or size < CHECKSUM_BYTES or offset + size > self._object.size:
                raise self._corrupt(
                    "object_truncated",
                    f"the chunk's {size} bytes at {offset} lie on another's or pass the end",
                    number,
                )
            chunks.append((number, offset, size))
            stop = offset + size
            if stop - start >= _PIECE_BYTES:
                yield _Piece(start, stop, chunks)
                start, chunks = stop, []
        yield _Piece(start, self._object.size, chunks)

    def _read(self, piece: _Piece) -> npt.NDArray[np.uint8]:
        try:
            data = self._object.read(piece.start, piece.stop)
        except OSError as error:
            raise self._corrupt("object_unreadable", f"{self._facts.path}: {error}") from None
        if len(data) != piece.stop - piece.start:
            raise self._corrupt(
                "object_truncated",
                f"{self._facts.path} has become shorter: it ends before byte {piece.stop}",
            )
        return data

    def _check(self, piece: _Piece, data: npt.NDArray[np.uint8]) -> None:
        """Compare each chunk's checksum, and take all bytes into the object's, in one pass."""
        done = 0
        for number, offset, size in piece.chunks:
            first, last = offset - piece.start, offset - piece.start + size
            payload, tail = data[first : last - CHECKSUM_BYTES], data[last - CHECKSUM_BYTES : last]
            stored, found = int.from_bytes(tail.tobytes(), "little"), crc32c(payload)
            if found != stored:
                raise self._corrupt(
                    "chunk_corrupt", f"its CRC32C is {found:08x}, stored was {stored:08x}", number
                )
            self._checksums[number] = stored
            self._crc = crc32c(data[done:first], self._crc)
            self._crc = combine_crc32c(self._crc, found, len(payload))
            self._crc = crc32c(tail, self._crc)
            done = last
        self._crc = crc32c(data[done:], self._crc)

    def _corrupt(self, kind: str, message: str, chunk: int | None = None) -> CorruptionError:
        return CorruptionError(
            kind,
            message,
            url=self._url,
            array=self._facts.array,
            shard=self._facts.shard,
            chunk=chunk,
            sample_id=None if chunk is None else self._facts.owners.get(chunk),
        )


def _ahead(
    pool: Executor,
    pieces: Iterable[_Piece],
    read: Callable[[_Piece], npt.NDArray[np.uint8]],
) -> Iterator[tuple[_Piece, npt.NDArray[np.uint8]]]:
    """What `read` gives for each piece, in order, some of them read before they are needed."""
    waiting: deque[tuple[_Piece, Future[npt.NDArray[np.uint8]]]] = deque()
    try:
        for piece in pieces:
            waiting.append((piece, pool.submit(partial(read, piece))))
            if len(waiting) > _PIECES_AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        for _, future in waiting:
            future.cancel()
