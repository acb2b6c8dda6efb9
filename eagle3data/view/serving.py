"""The server: where it listens, and who may come from there."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from collections.abc import Callable
from dataclasses import replace

import uvicorn

from eagle3data.schema.errors import InputError
from eagle3data.view.app import create_app
from eagle3data.view.settings import Settings

_TOKEN_BYTES = 24


def serve(settings: Settings, host: str, port: int, told: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args:
        settings: what is looked at.
        host: to listen at; anything but loopback needs a token, which is made here.
        port: 0 takes a free one.
        told: called with the address to open once it is listened at.

    Raises:
        InputError: the address can't be listened at.
    """
    place = _listen(host, port)
    with place:
        if not _is_loopback(place):
            settings = replace(settings, token=secrets.token_urlsafe(_TOKEN_BYTES))
        address = _address(place, host, settings.token)
        app = create_app(settings, started=lambda: told(address))
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[place])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, OverflowError, UnicodeError) as error:
        raise InputError(f"{host}:{port} is no address to listen at: {error}") from None
    place = socket.socket(family, kind, protocol)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
        place.listen()
    except OSError as error:
        place.close()
        other = (
            " Name another with --port, or 0 for any." if error.errno == errno.EADDRINUSE else ""
        )
        raise InputError(f"{host}:{port} can't be listened at: {error.strerror}.{other}") from None
    return place


def _is_loopback(place: socket.socket) -> bool:
    return ipaddress.ip_address(place.getsockname()[0]).is_loopback


def _address(place: socket.socket, host: str, token: str | None) -> str:
    name = ipaddress.ip_address(place.getsockname()[0])
    shown = socket.gethostname() if name.is_unspecified else host
    if ":" in shown:
        shown = f"[{shown}]"
    query = "" if token is None else f"?token={token}"
    return f"http://{shown}:{place.getsockname()[1]}/{query}"
