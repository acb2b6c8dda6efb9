"""Addresses, `unix:PATH` or `tcp:HOST:PORT`: listened on and dialled, with a shared key."""

from __future__ import annotations

import os
import socket
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
)
from multiprocessing.util import Finalize
from pathlib import Path

from eagle3data.schema.errors import EngineError, InputError

UNIX = "unix:"
TCP = "tcp:"
_GREETING_SECONDS = 60.0
_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class Entrance:
    """A socket that is listened on.

    A Unix socket's path goes with the process, and may have gone before: multiprocessing's own
    listener fails then, with a traceback among the last words of an engine.
    """

    def __init__(self, listening: socket.socket, path: str | None = None) -> None:
        """For internal use: `listen` makes them."""
        self._socket = listening
        if path is not None:
            Finalize(self, Path(path).unlink, args=(True,), exitpriority=0)

    def accept(self) -> Connection:
        """Wait for the next who connects."""
        raw, _ = self._socket.accept()
        return Connection(raw.detach())


def check_address(address: str) -> None:
    """Refuse what is neither `unix:PATH` nor `tcp:HOST:PORT`.

    Raises:
        InputError: what is wrong with it.
    """
    _place(address)


def listen(address: str) -> Entrance:
    """Listen; a Unix socket's folder is made where it is missing, for this user alone.

    Raises:
        EngineError: somebody listens there already, or this user may not.
    """
    place = _place(address)
    try:
        if isinstance(place, str):
            return _listen_in_folder(place)
        return Entrance(socket.create_server(place))
    except OSError as error:
        raise EngineError(
            f"the connector can't listen at {address}: {error}. If an engine that was started "
            "with these arguments still runs, end it; or ask `eagle3data serve-args` for new ones."
        ) from error


def let_in(connection: Connection, key: bytes, *, is_tcp: bool) -> None:
    """Be sure that who has connected has the key.

    Raises:
        AuthenticationError, EOFError, OSError: it has not, or is gone.
    """
    if is_tcp:
        _stay_alive(connection)
    deliver_challenge(connection, key)
    answer_challenge(connection, key)


def dial(address: str, key: bytes) -> Connection:
    """Connect to who listens there, and be sure that it has the key.

    Raises:
        EngineError: nobody answers, or someone else.
        InputError: no address.
    """
    place = _place(address)
    try:
        connection: Connection = Client(place)
        if not isinstance(place, str):
            _stay_alive(connection)
        if not connection.poll(_GREETING_SECONDS):
            raise TimeoutError(f"{_GREETING_SECONDS:.0f} s without a word")
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except (OSError, EOFError, AuthenticationError) as error:
        raise EngineError(
            f"no eagle3data connector answers at {address} ({error or type(error).__name__})."
        ) from error
    return connection


def _place(address: str) -> str | tuple[str, int]:
    if address.startswith(UNIX):
        return address.removeprefix(UNIX)
    host, _, port = address.removeprefix(TCP).rpartition(":")
    if not (address.startswith(TCP) and host and port.isdigit()):
        raise InputError(f"address {address}: expected unix:PATH or tcp:HOST:PORT.")
    return host, int(port)


def _listen_in_folder(path: str) -> Entrance:
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid not in (0, os.getuid()):
        raise PermissionError(f"{folder} belongs to another user")
    _remove_dead_socket(path)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    os.chmod(path, 0o600)
    listening.listen()
    return Entrance(listening, path)


def _remove_dead_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except FileNotFoundError:
            return


def _stay_alive(connection: Connection) -> None:
    """Notice within about a minute that the other machine is gone, also while nothing is said."""
    with socket.socket(fileno=os.dup(connection.fileno())) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _ALIVE:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)
