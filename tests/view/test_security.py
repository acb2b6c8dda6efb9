"""Who is let in, what a page may do, and that no path leads out of the data set."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eagle3data.schema.errors import InputError
from eagle3data.view.serving import serve
from eagle3data.view.settings import Settings
from tests.support import Command, random_samples, small_manifest, write_set
from tests.view.conftest import Client

TOKEN = "a-token"


@pytest.fixture
def small(tmp_path: Path) -> str:
    return write_set(tmp_path / "set", random_samples(5, small_manifest()), small_manifest())


def test_pages_may_run_and_ask_for_our_own_files_only(small: str, client: Client) -> None:
    for path in ("/", "/static/view.js", "/nothing"):
        headers = client(small).get(path).headers
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    page = client(small).get("/").text
    assert re.findall(r"<script(?! src=\"/)", page) == []
    assert re.findall(r"\s(?:style|on\w+)=", page) == []


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "192.168.0.1:8033"])
def test_a_name_that_somebody_bound_to_loopback_is_refused(
    small: str, client: Client, host: str
) -> None:
    assert client(small).get("/", headers={"host": host}).status_code == 400
    assert client(small).get("/", headers={"host": "localhost:1"}).status_code == 200


def test_a_token_is_asked_for_once(small: str, client: Client) -> None:
    visitor = client(small, token=TOKEN)
    visitor.follow_redirects = False
    for path in ("/", "/?token=another", "/static/view.js", "/nothing"):
        refused = visitor.get(path)
        assert refused.status_code == 401
        assert small not in refused.text
    welcomed = visitor.get(f"/?token={TOKEN}&x=1", headers={"host": "gpu-7:8033"})
    assert (welcomed.status_code, welcomed.headers["location"]) == (303, "/?x=1")
    cookie = welcomed.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert visitor.get("/").status_code == 200
    visitor.cookies.clear()
    elsewhere = visitor.get(f"http://127.0.0.1:8033//example.org/?token={TOKEN}")
    assert elsewhere.headers["location"] == "/example.org/"


def test_other_pages_may_not_post(small: str, client: Client) -> None:
    visitor = client(small)
    for origin in ("http://example.org", "null", "http://127.0.0.1:9999"):
        assert visitor.post("/", headers={"origin": origin}).status_code == 403
    assert visitor.post("/").status_code == 403
    own = visitor.post("/", headers={"origin": "http://127.0.0.1:8033"})
    assert own.status_code == 405


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/static/../app.py", "/static/%2e%2e/app.py", "/charts/..%2f__init__.py",
     "/static/..%5capp.py", "/zarr.json", "/static//etc/passwd"],
)  # fmt: skip
def test_no_path_leads_elsewhere(small: str, client: Client, path: str) -> None:
    page = client(small).get(path)
    assert page.status_code == 404
    assert "create_app" not in page.text


@contextmanager
def viewing(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`view` in a process of its own, and the address that it printed."""
    command = [sys.executable, "-m", "eagle3data.cli.main", "view", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as at:
        assert at.stdout is not None
        yield at, at.stdout.readline().removeprefix("Open ").strip()
        at.kill()


def test_beyond_this_machine_a_token_is_made_until_interrupted(small: str) -> None:
    with viewing(small, "--host", "0.0.0.0") as (process, address):
        port, token = re.fullmatch(r"http://[^/]+:(\d+)/\?token=(\S{32,})", address).groups()  # type: ignore[union-attr]
        here = f"http://127.0.0.1:{port}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(here)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"{here}?token={token}") as answer:
            assert b"synthetic" in answer.read()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, "interrupted.\n")


def test_where_nobody_can_listen(small: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="Name another with --port"):
            serve(Settings(url=small), "127.0.0.1", port, print)
    with pytest.raises(InputError, match="is no address to listen at"):
        serve(Settings(url=small), "no.such.host.invalid", 0, print)


def test_no_data_set_is_said_at_once(tmp_path: Path, command: Command) -> None:
    done = command("view", tmp_path)
    assert (done.returncode, "holds no data set" in done.stderr) == (2, True)
