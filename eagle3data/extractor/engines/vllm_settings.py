"""How vLLM is told to capture: arguments for an engine of one's own and for a server alike."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3data.extractor.engines.addresses import UNIX, check_address
from eagle3data.schema.errors import InputError

TRIED_WITH = ("0.26", "0.32")
"""The oldest and the newest vLLM that extraction was run with: on CUDA, on a CPU."""
CONNECTOR = "Eagle3DataConnector"
CONNECTOR_MODULE = "eagle3data.extractor.engines.vllm_adapter"
SETTINGS = "eagle3data"
"""Key of the connector's settings in `kv_connector_extra_config`."""
PARAMS = "eagle3data"
"""Key of a request's parameters in `kv_transfer_params`."""
INSTANCE = "instance"
"""In what the connector answers: a name that no other running engine has."""
_SOCKET = "states"
_LONGEST_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 107."""
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""What every shell leaves as it is."""


@dataclass(frozen=True, kw_only=True)
class Doorway:
    """Where the connector of an engine is met.

    Attributes:
        address: `unix:PATH` or `tcp:HOST:PORT`.
        key: secret, hexadecimal.
        owner: process that the engine ends with; None for a server that outlives its clients.
    """

    address: str
    key: str
    owner: int | None = None

    @classmethod
    def private(cls, folder: str) -> Doorway:
        """One for an engine of this process alone, in a folder that only this user enters."""
        return cls(address=f"{UNIX}{folder}/{_SOCKET}", key=_new_key(), owner=os.getpid())

    @classmethod
    def of_server(cls, listen: str | None = None) -> Doorway:
        """One for a server that runs on its own.

        Args:
            listen: address; by default a socket in a folder that the server will make, which
                only its user enters.

        Raises:
            InputError: an address that can't be used, or that a shell would take apart.
        """
        address = listen or f"{UNIX}{_socket_place()}/eagle3data-{secrets.token_hex(4)}/{_SOCKET}"
        check_address(address)
        if not _PLAIN.fullmatch(address):
            raise InputError(f"--listen {address}: only letters, digits and @%+=:,./_- please.")
        path = address.removeprefix(UNIX)
        if address.startswith(UNIX) and len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            raise InputError(
                f"--listen {address}: the path of a socket has {_LONGEST_SOCKET_PATH} bytes at "
                "most; choose a shorter one, for example below /tmp."
            )
        return cls(address=address, key=_new_key())


def capture_arguments(layers: Sequence[int], doorway: Doorway) -> dict[str, Any]:
    """Engine arguments that make vLLM keep and hand over the states of these layers.

    Args:
        layers: canonical ids, ascending, each once: vLLM returns them in that order whatever
            order was asked, and a duplicate kills it. They are vLLM's own ids too.
        doorway: where clients connect.
    """
    return {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}},
        },
        "kv_transfer_config": {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": CONNECTOR_MODULE,
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {SETTINGS: doorway.__dict__},
        },
        # With it, rows of a shared prefix have come back missing (vLLM #44485).
        "enable_prefix_caching": False,
    }


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments as words for `vllm serve`.

    Nested ones are named by their path (`--speculative-config.method=...`), which vLLM puts
    together again: unlike JSON they need no quotes, which a shell does not read in the result of
    `$(...)`.
    """
    words = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}{path}={text}" for path, text in _leaves(value)]
    return words


def socket_folder() -> str:
    """A new folder that only this user enters, whose path is short enough for a socket in it."""
    return tempfile.mkdtemp(prefix="eagle3data-", dir=_socket_place())


def _socket_place() -> str:
    place = tempfile.gettempdir()
    room = _LONGEST_SOCKET_PATH - len(f"/eagle3data-12345678/{_SOCKET}")
    return place if len(os.fsencode(place)) <= room else "/tmp"  # noqa: S108


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    """Paths (`.a.b`) and texts of what is nested; what is None is left out."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            for path, text in _leaves(inner):
                yield f".{name}{path}", text
    elif value is not None:
        yield "", value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _new_key() -> str:
    # A letter first: vLLM reads whatever looks like a number as one.
    return "f" + secrets.token_hex(32)[1:]
