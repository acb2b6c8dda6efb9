"""A way to an S3 server on which chosen requests go wrong, and which checks CRC32C as S3 does."""

from __future__ import annotations

import base64
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from eagle3data.schema.digest import crc32c


@dataclass
class Fault:
    """What happens to the next request of a method whose URL holds a text.

    refuse: answered with `code` instead of being done. reset: the connection ends before it is
    done. lost: it is done, and the connection ends before the answer. short: half of the
    answer's body arrives. damage: a bit of its body is flipped on the way. hang: nothing comes,
    as long as the proxy runs.
    """

    method: str
    kind: Literal["refuse", "reset", "lost", "short", "damage", "hang"]
    text: str = ""
    status: int = 503
    code: str = "SlowDown"
    times: int = 1


class FaultyProxy:
    """Hands requests on one at a time, so that a condition and its write are one step."""

    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint).netloc
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.turn = threading.Lock()
        self.ending = threading.Event()
        self.url = ""

    def count(self, method: str, text: str = "") -> int:
        return sum(seen[0] == method and text in seen[1] for seen in self.seen)

    def fault_of(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method == method and fault.text in path:
                fault.times -= 1
                return fault
        return None

    @contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        handler = type("Handler", (_Handler,), {"proxy": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            self.ending.set()
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: ClassVar[FaultyProxy]

    def do_GET(self) -> None:
        self._pass_on()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        return

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.proxy.turn:
            self.proxy.seen.append((self.command, self.path, dict(self.headers)))
            fault = self.proxy.fault_of(self.command, self.path)
            kind = fault.kind if fault else ""
            if fault and kind == "refuse":
                return self._refuse(fault.status, fault.code)
            if kind == "reset":
                return self._hang_up()
            if kind == "hang":
                self.proxy.turn.release()
                self.proxy.ending.wait()
                self.proxy.turn.acquire()
                return self._hang_up()
            if kind == "damage":
                body = bytes([body[0] ^ 1]) + body[1:]
            expected = self.headers.get("x-amz-checksum-crc32c")
            actual = base64.b64encode(crc32c(body).to_bytes(4, "big")).decode()
            # The end of a multipart carries the checksum of the object, not of its body.
            if expected and self.command == "PUT" and expected != actual:
                return self._refuse(400, "BadDigest")
            status, headers, answer = self._upstream(body)
        if kind == "lost":
            return self._hang_up()
        return self._answer(status, headers, answer, whole=kind != "short")

    def _upstream(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.proxy.upstream)
        headers = {name: value for name, value in self.headers.items() if name != "Expect"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), data

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, whole: bool
    ) -> None:
        dropped = {"connection", "date", "server", "transfer-encoding"}
        if self.command != "HEAD":
            dropped.add("content-length")
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in dropped:
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if whole else body[: len(body) // 2])
        if not whole:
            self._hang_up()

    def _refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>as asked</Message></Error>".encode()
        headers = [("Content-Type", "application/xml")]
        self._answer(status, headers, b"" if self.command == "HEAD" else body, whole=True)

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
