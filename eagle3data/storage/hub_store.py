"""Data sets in repositories of the Hugging Face Hub: read from any revision, a range a request.

Nothing is written object by object: a commit of its own for each would take days. What writes
there (`transfer.hub`) commits whole shards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eagle3data.schema.errors import InputError
from eagle3data.storage.local import Buffer
from eagle3data.storage.object_store import Bytes, ObjectStore, ObjectUpload


class HubStore(ObjectStore):
    """The files of one repository, through the hub's own file system.

    It asks again by itself where a connection is lost or the hub says "later".
    """

    def read_range(self, path: str, start: int, stop: int) -> Bytes:
        # Its files read 5 MB ahead unless told not to.
        with self.fs.open(path, "rb", cache_type="none") as file:
            file.seek(start)
            data = file.read(stop - start)
        return np.frombuffer(data, np.uint8)

    def identity(self, path: str) -> str | None:
        try:
            info: dict[str, Any] = self.fs.info(path)
        except FileNotFoundError:
            return None
        return str(info.get("xet_hash") or info.get("blob_id") or info["size"])

    def upload(self, path: str) -> ObjectUpload:
        raise self._refusal(path)

    def replace(self, path: str, data: Buffer) -> None:  # noqa: ARG002
        raise self._refusal(path)

    def delete(self, path: str) -> None:
        raise self._refusal(path)

    def _refusal(self, path: str) -> InputError:
        return InputError(
            f"{self.url}: {path} can't be written: the hub is no place to work in, as every "
            "object would be a commit. Write to a folder or a bucket, then upload the finished "
            f"set: eagle3data copy ./states {self.url}"
        )
