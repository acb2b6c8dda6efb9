"""States from the process that computes them to the one that writes them: no file, no pickle.

The engine's worker serves (`StateServer`), the extractor connects (`StateClient`). Each finished
sample is copied once into memory that both processes map: an anonymous file whose descriptor
goes over a Unix socket, so nothing is left behind however a process ends. Between two machines
the bytes themselves go over TCP. The memory is bounded: while it is full, the engine keeps
the states where they are.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.extractor.engines.addresses import UNIX, dial, let_in, listen
from eagle3data.schema.errors import EngineError
from eagle3data.schema.manifest import StorageDtype

PROTOCOL = 1
_ALIGNMENT = 4096


@dataclass(frozen=True)
class Received:
    """One sample's states as they arrived.

    Attributes:
        request: name that the client gave the request.
        tokens: T.
        tokens_crc32c: of the token ids that the engine ran.
        states: `[L, T, H]` in the storage dtype (bfloat16 as uint16); valid until `release`.
        norms: `[L, T]` float32, Euclidean norms of their rows.
        largest: `[L, T]` float32, largest magnitudes of their rows.
        release: gives the memory back; call it once the states are written.
    """

    request: str
    tokens: int
    tokens_crc32c: int
    states: npt.NDArray[Any]
    norms: npt.NDArray[np.float32]
    largest: npt.NDArray[np.float32]
    release: Callable[[], None]


@dataclass(frozen=True)
class SampleLayout:
    """How one sample lies in memory: its states, then `[2, L, T]` float32 of its rows.

    The rows' norms and largest magnitudes are found where the states are made, on the device in
    microseconds; on the other side they would cost as much as writing does.
    """

    layers: int
    tokens: int
    hidden_size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the states, 16 bits each."""
        return self.layers, self.tokens, self.hidden_size

    @property
    def values(self) -> int:
        """How many states."""
        return self.layers * self.tokens * self.hidden_size

    @property
    def rows_offset(self) -> int:
        """Where the rows' float32 begin."""
        return -(-self.values * 2 // 4) * 4

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.rows_offset + 2 * 4 * self.layers * self.tokens


@dataclass(frozen=True)
class Region:
    """A piece of a consumer's memory: `memory[offset : offset + nbytes]`."""

    offset: int
    nbytes: int


class Consumer:
    """What the server knows of one connected client."""

    def __init__(self, connection: Connection, wish: Mapping[str, Any], shared: bool) -> None:
        """For internal use: `StateServer` makes them."""
        self._connection = connection
        self._shared = shared
        self.name = str(wish["consumer"])
        self.dtype = StorageDtype(wish["dtype"])
        self.buffer_bytes = int(wish["buffer_bytes"])
        self._file = os.memfd_create("eagle3data-states", os.MFD_CLOEXEC)
        os.ftruncate(self._file, self.buffer_bytes)
        self.memory = mmap.mmap(self._file, self.buffer_bytes)
        self._taken: list[Region] = []
        self._gone = False
        self._changing = threading.Lock()
        self._sending = threading.Lock()

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed its end."""
        return self._gone

    def welcome(self, facts: Mapping[str, Any]) -> None:
        """Answer the client's greeting; the memory goes with it where it can be shared."""
        self._send({**facts, "protocol": PROTOCOL, "shared": self._shared})
        if self._shared:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as raw:
                socket.send_fds(raw, [b"m"], [self._file])

    def reserve(self, nbytes: int) -> Region | None:
        """Memory for one sample; None while so much is not free.

        Raises:
            EngineError: the sample is larger than all of it.
        """
        if nbytes > self.buffer_bytes:
            raise EngineError(
                f"a sample of {nbytes:,} B of states does not fit into the buffer of "
                f"{self.buffer_bytes:,} B between engine and writer."
            )
        with self._changing:
            offset = self._free_offset(nbytes)
            if offset is None:
                return None
            region = Region(offset, nbytes)
            self._taken.append(region)
            self._taken.sort(key=lambda taken: taken.offset)
            return region

    def deliver(self, region: Region, header: Mapping[str, Any]) -> None:
        """Tell the client that a sample is in its memory, or send it."""
        try:
            if self._shared:
                self._send({**header, "offset": region.offset})
                return
            with self._sending:
                self._connection.send_bytes(json.dumps(header).encode())
                view = memoryview(self.memory)[region.offset : region.offset + region.nbytes]
                self._connection.send_bytes(view)
        except OSError:
            self.leave()
        self._release(region.offset)

    def fail(self, reason: str) -> None:
        """Tell the client that its run can't go on."""
        try:
            self._send({"error": reason})
        except OSError:
            self.leave()

    def listen(self) -> None:
        """Take memory back as the client releases it, until it goes."""
        try:
            while True:
                self._release(int(json.loads(self._connection.recv_bytes())["release"]))
        except (EOFError, OSError, ValueError, KeyError):
            self.leave()

    def leave(self) -> None:
        """Forget a client that has gone."""
        self._gone = True

    def close(self) -> None:
        """Let go of the connection and of this end of the memory."""
        # Not while something is sent: the next connection may get the same descriptor.
        with self._sending:
            self._connection.close()
        os.close(self._file)

    def _free_offset(self, nbytes: int) -> int | None:
        """The lowest gap that is large enough, so that few pages are ever touched."""
        begin = 0
        for taken in self._taken:
            if taken.offset - begin >= nbytes:
                return begin
            begin = _aligned(taken.offset + taken.nbytes)
        return begin if self.buffer_bytes - begin >= nbytes else None

    def _release(self, offset: int) -> None:
        with self._changing:
            self._taken = [taken for taken in self._taken if taken.offset != offset]

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._sending:
            self._connection.send_bytes(json.dumps(message).encode())


class StateServer:
    """Accepts clients; each has its own memory."""

    def __init__(
        self,
        address: str,
        key: bytes,
        facts: Mapping[str, Any],
        on_client: Callable[[Consumer], None],
        on_leave: Callable[[Consumer], None],
    ) -> None:
        """Listen, in threads of their own that end with the process.

        Args:
            address: `unix:PATH` or `tcp:HOST:PORT`.
            key: shared secret; a client without it is refused.
            facts: told to each client.
            on_client: called in the client's thread before it is welcomed.
            on_leave: called there when it has gone.

        Raises:
            EngineError: the address can't be listened on.
        """
        self._facts = dict(facts)
        self._key = key
        self._on_client, self._on_leave = on_client, on_leave
        self._shared = address.startswith(UNIX)
        self._listener = listen(address)
        threading.Thread(target=self._accept, name="eagle3data-accept", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except ConnectionError:
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="eagle3data-client", daemon=True
            ).start()

    def _serve(self, connection: Connection) -> None:
        try:
            # Here and not where it is accepted: one that says nothing must hinder nobody else.
            let_in(connection, self._key, is_tcp=not self._shared)
            consumer = Consumer(connection, json.loads(connection.recv_bytes()), self._shared)
        except (AuthenticationError, EOFError, OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        self._on_client(consumer)
        try:
            consumer.welcome(self._facts)
            consumer.listen()
        except OSError:
            # It has gone before it was welcomed.
            return
        finally:
            consumer.leave()
            self._on_leave(consumer)
            consumer.close()


class StateClient:
    """The extractor's end.

    Attributes:
        facts: what the server told of itself.
    """

    def __init__(
        self, address: str, key: bytes, *, consumer: str, dtype: str, buffer_bytes: int
    ) -> None:
        """Connect.

        Args:
            address: of the server.
            key: shared secret.
            consumer: a name that no other client has.
            dtype: storage dtype, `float16` or `bfloat16`.
            buffer_bytes: memory between the two; at least the largest sample.

        Raises:
            EngineError: nobody listens there, or someone else does.
        """
        self._dtype = np.dtype(np.float16 if dtype == "float16" else np.uint16)
        self._releasing = threading.Lock()
        self._where = address
        self._connection = dial(address, key)
        try:
            wish = {"consumer": consumer, "dtype": dtype, "buffer_bytes": _aligned(buffer_bytes)}
            self._connection.send_bytes(json.dumps(wish).encode())
            self.facts: dict[str, Any] = json.loads(self._connection.recv_bytes())
            if self.facts["protocol"] != PROTOCOL:
                raise EngineError(
                    f"the connector at {address} speaks version {self.facts['protocol']}, this "
                    f"package version {PROTOCOL}: install the same eagle3data on both sides."
                )
            self._memory = self._receive_memory() if self.facts["shared"] else None
        except (OSError, EOFError, ValueError, KeyError) as error:
            raise EngineError(
                f"the connector at {address} answers in another way than this package's "
                f"({error or type(error).__name__})."
            ) from error

    def receive(self, timeout: float | None) -> Received | None:
        """The next sample's states; None when none came within `timeout` seconds.

        Raises:
            EngineError: the engine's side failed or is gone.
        """
        try:
            if not self._connection.poll(timeout):
                return None
            message = json.loads(self._connection.recv_bytes())
            if "error" in message:
                raise EngineError(f"the engine's connector failed: {message['error']}")
            return self._received(message)
        except (OSError, EOFError) as error:
            raise EngineError(
                "the engine's process ended in the middle of its work; its own messages say why. "
                "What is committed stays: run the same command again to continue."
            ) from error

    def close(self) -> None:
        """Hang up; the server gives its end of the memory back."""
        self._connection.close()

    def _received(self, message: Mapping[str, Any]) -> Received:
        tokens = int(message["tokens"])
        if self._memory is None:
            data: Any = self._connection.recv_bytes()
            offset, release = 0, _nothing
        else:
            data, offset = self._memory, int(message["offset"])
            release = self._releaser(offset)
        layout = SampleLayout(len(self.facts["layers"]), tokens, int(self.facts["hidden_size"]))
        piece = memoryview(data)[offset : offset + layout.nbytes]
        states = np.frombuffer(piece, self._dtype, layout.values).reshape(layout.shape)
        rows = np.frombuffer(piece, np.float32, offset=layout.rows_offset)
        norms, largest = rows.reshape(2, *layout.shape[:2])
        return Received(
            str(message["request"]),
            tokens,
            int(message["tokens_crc32c"]),
            states,
            norms,
            largest,
            release,
        )

    def _releaser(self, offset: int) -> Callable[[], None]:
        def release() -> None:
            with self._releasing:
                try:
                    self._connection.send_bytes(json.dumps({"release": offset}).encode())
                except OSError:
                    # The engine has gone; `receive` says so to who waits for more.
                    return

        return release

    def _receive_memory(self) -> mmap.mmap:
        with socket.socket(fileno=os.dup(self._connection.fileno())) as raw:
            _, files, _, _ = socket.recv_fds(raw, 1, 1)
        if not files:
            raise EngineError(f"the connector at {self._where} passed no memory.")
        try:
            return mmap.mmap(files[0], 0, prot=mmap.PROT_READ)
        finally:
            os.close(files[0])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _nothing() -> None:
    """Bytes of one's own need no release."""
