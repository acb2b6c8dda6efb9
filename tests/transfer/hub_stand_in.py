"""A stand-in for the Hugging Face Hub on loopback: what the hub's own client asks of it.

It keeps every commit's whole tree, so that a test can look at each revision. Uploads go the way
of Git LFS (the client is told by its environment to leave Xet out).
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from typing import Any

import yaml
from flask import Flask, Response, jsonify, request
from werkzeug.serving import make_server

Tree = dict[str, bytes]


@dataclass
class Commit:
    """One revision: its message, and every file."""

    message: str
    tree: Tree

    @property
    def oid(self) -> str:
        listing = "".join(f"{name}:{_oid(data)}\n" for name, data in sorted(self.tree.items()))
        return hashlib.sha1(f"{self.message}\n{listing}".encode()).hexdigest()


@dataclass
class Repository:
    """Commits on `main`, oldest first."""

    private: bool
    commits: list[Commit] = field(default_factory=lambda: [Commit("initial commit", {})])

    @property
    def head(self) -> Commit:
        return self.commits[-1]


class HubStandIn:
    """A hub with repositories of data sets.

    Attributes:
        repositories: by `namespace/name`.
        sent: bytes of each upload by SHA-256.
        ranges: `Range` headers of downloads.
        fail_commits: how many commits are refused as if the branch had moved.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.sent: dict[str, bytes] = {}
        self.ranges: list[str] = []
        self.fail_commits = 0
        self._server = make_server("127.0.0.1", 0, _app(self), threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> HubStandIn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """What makes the hub's client come here."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": "hf_stand_in",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def tree(self, repository: Repository, revision: str) -> Tree | None:
        if revision == "main":
            return repository.head.tree
        found = [commit.tree for commit in repository.commits if commit.oid == revision]
        return found[0] if found else None


def _oid(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refusal(status: int, code: str) -> Response:
    return Response(status=status, headers={"X-Error-Code": code, "X-Error-Message": code})


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(data), "oid": _oid(data)}


def _app(hub: HubStandIn) -> Flask:
    app = Flask("hub")

    def found(name: str, revision: str) -> Tree | Response:
        repository = hub.repositories.get(name)
        if repository is None:
            return _refusal(404, "RepoNotFound")
        tree = hub.tree(repository, revision)
        return _refusal(404, "RevisionNotFound") if tree is None else tree

    @app.post("/api/repos/create")
    def create() -> Any:
        body = request.get_json()
        name = f"{body['organization']}/{body['name']}"
        if name in hub.repositories:
            return jsonify({"url": f"{hub.endpoint}/datasets/{name}"}), 409
        private = body.get("private") is True or body.get("visibility") == "private"
        hub.repositories[name] = Repository(private)
        return jsonify({"url": f"{hub.endpoint}/datasets/{name}"})

    @app.get("/api/datasets/<space>/<name>")
    @app.get("/api/datasets/<space>/<name>/revision/<revision>")
    def about(space: str, name: str, revision: str = "main") -> Any:
        tree = found(f"{space}/{name}", revision)
        if isinstance(tree, Response):
            return tree
        repository = hub.repositories[f"{space}/{name}"]
        sha = repository.head.oid if revision == "main" else revision
        return jsonify({"id": f"{space}/{name}", "sha": sha, "private": repository.private})

    @app.post("/api/datasets/<space>/<name>/preupload/<revision>")
    def preupload(space: str, name: str, revision: str) -> Any:
        tree = found(f"{space}/{name}", revision)
        if isinstance(tree, Response):
            return tree
        answers = []
        for file in request.get_json()["files"]:
            there = tree.get(file["path"])
            mode = "lfs" if "/c/" in file["path"] else "regular"
            oid = there and (_oid(there) if mode == "lfs" else _git_oid(there))
            answers.append(
                {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}
            )
        return jsonify({"files": answers})

    @app.post("/datasets/<space>/<name>.git/info/lfs/objects/batch")
    def batch(space: str, name: str) -> Any:
        objects = []
        for wanted in request.get_json(force=True)["objects"]:
            upload = {"href": f"{hub.endpoint}/upload/{wanted['oid']}"}
            known = wanted["oid"] in hub.sent
            objects.append(wanted | ({} if known else {"actions": {"upload": upload}}))
        return jsonify({"transfer": "basic", "objects": objects})

    @app.put("/upload/<oid>")
    def upload(oid: str) -> Any:
        data = request.get_data()
        if _oid(data) != oid:
            return _refusal(400, "WrongContents")
        hub.sent[oid] = data
        return ""

    @app.post("/api/datasets/<space>/<name>/commit/<revision>")
    def commit(space: str, name: str, revision: str) -> Any:
        repository = hub.repositories[f"{space}/{name}"]
        lines = [json.loads(line) for line in request.get_data().splitlines()]
        header = lines[0]["value"]
        if hub.fail_commits or header.get("parentCommit") not in {None, repository.head.oid}:
            hub.fail_commits = max(0, hub.fail_commits - 1)
            return _refusal(412, "PreconditionFailed")
        tree = dict(repository.head.tree)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                tree[value["path"]] = hub.sent[value["oid"]]
            else:
                return _refusal(400, line["key"])
        repository.commits.append(Commit(header["summary"], tree))
        oid = repository.head.oid
        return jsonify(
            {"commitUrl": f"{hub.endpoint}/datasets/{space}/{name}/commit/{oid}", "commitOid": oid}
        )

    @app.post("/api/validate-yaml")
    def validate_card() -> Any:
        text = request.get_json()["content"]
        metadata = yaml.safe_load(text.split("---")[1])
        wrong = set(metadata) - {"pretty_name", "tags", "size_categories", "configs"}
        return jsonify({"errors": [{"message": name} for name in wrong], "warnings": []})

    @app.get("/api/datasets/<space>/<name>/tree/<revision>")
    @app.get("/api/datasets/<space>/<name>/tree/<revision>/<path:folder>")
    def listing(space: str, name: str, revision: str, folder: str = "") -> Any:
        tree = found(f"{space}/{name}", revision)
        if isinstance(tree, Response):
            return tree
        prefix = f"{folder}/" if folder else ""
        below = {path: data for path, data in tree.items() if path.startswith(prefix)}
        if folder and not below:
            return _refusal(404, "EntryNotFound")
        files = [_entry(path, data) for path, data in below.items()]
        if request.args.get("recursive") not in {"true", "True"}:
            files = [entry for entry in files if "/" not in entry["path"][len(prefix) :]]
        folders = {
            prefix + rest.rpartition("/")[0]
            for rest in (path[len(prefix) :] for path in below)
            if "/" in rest
        }
        names = {parent for parent in folders for parent in _with_parents(parent, prefix)}
        if request.args.get("recursive") not in {"true", "True"}:
            names = {parent for parent in names if "/" not in parent[len(prefix) :]}
        return jsonify(
            files + [{"type": "directory", "path": path, "oid": "0"} for path in sorted(names)]
        )

    @app.post("/api/datasets/<space>/<name>/paths-info/<revision>")
    def paths_info(space: str, name: str, revision: str) -> Any:
        tree = found(f"{space}/{name}", revision)
        if isinstance(tree, Response):
            return tree
        wanted = request.form.getlist("paths")
        return jsonify([_entry(path, tree[path]) for path in wanted if path in tree])

    @app.get("/datasets/<space>/<name>/resolve/<revision>/<path:path>")
    def resolve(space: str, name: str, revision: str, path: str) -> Any:
        tree = found(f"{space}/{name}", revision)
        if isinstance(tree, Response):
            return tree
        if path not in tree:
            return _refusal(404, "EntryNotFound")
        response = Response(tree[path], mimetype="application/octet-stream")
        if "Range" in request.headers:
            hub.ranges.append(request.headers["Range"])
        response.make_conditional(request, accept_ranges=True, complete_length=len(tree[path]))
        return response

    return app


def _with_parents(path: str, prefix: str) -> list[str]:
    parts = path[len(prefix) :].split("/")
    return [prefix + "/".join(parts[: count + 1]) for count in range(len(parts))]


def _git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
