"""DeepSpec's target cache: `shard-*.bin`, `samples.idx`, `manifest.json`.

Checked against deepseek-ai/DeepSpec deepspec/data/target_cache_dataset.py (4351696) and
deepspec/modeling/target_extract.py (1bcc590). Version 2 of the manifest: a record of `samples.idx`
is 56 bytes, little endian: sample id (u64), shard (u32), tokens T (u32), and where in the shard
begin (u64 each) the ids int32 `[T]`, the attention mask uint8 `[T]`, the loss mask uint8 `[T]`,
the states `[T, layers * H]` and the last state `[T, H]`. States are bfloat16, or float8 that was
cast without a scale (all of whose values bfloat16 has). `target_layer_ids` counts the outputs of
layers from 0, with -1 for the embeddings; the last state had the final norm applied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.interop.columns import loss_mask, split, token_ids
from eagle3data.interop.floats import FLOAT8, FLOAT8_AS_BFLOAT16
from eagle3data.interop.opened import SourceOfSamples, Stored
from eagle3data.interop.source import Entry, SourceFacts, SourceOptions, Tokens
from eagle3data.interop.source_files import open_file, read_range, unreadable
from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState

INDEX, MANIFEST = "samples.idx", "manifest.json"
_VERSION = 2
_RECORD = np.dtype(
    [
        ("sample", "<u8"),
        ("shard", "<u4"),
        ("tokens", "<u4"),
        ("input_ids", "<u8"),
        ("attention_mask", "<u8"),
        ("loss_mask", "<u8"),
        ("states", "<u8"),
        ("last", "<u8"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """What `manifest.json` says."""

    samples: int
    layers: list[int]
    hidden_size: int
    dtype: str
    shards: list[str]
    model: str | None

    @property
    def itemsize(self) -> int:
        return 1 if self.dtype in FLOAT8 else 2


class DeepSpecSource(SourceOfSamples):
    """A `StateSource` of a target cache, by the index."""

    format = "deepspec"

    def __init__(
        self, options: SourceOptions, hidden_size: int, num_hidden_layers: int | None
    ) -> None:
        """Read manifest and index.

        Args:
            options: the folder.
            hidden_size: H of the target.
            num_hidden_layers: of the target, N; without it the layers of the slots stay unsaid,
                since the last is N.

        Raises:
            InputError: either is missing or malformed, or the set is of another hidden size.
        """
        self._folder, self.where = options.path, str(options.path)
        self._manifest = _manifest(options.path / MANIFEST)
        self._final = num_hidden_layers
        if self._manifest.hidden_size != hidden_size:
            raise InputError(
                f"{options.path / MANIFEST} says hidden size {self._manifest.hidden_size}; the "
                f"target has {hidden_size}. Is it the right --model?"
            )
        self._check_layers()
        self._records = _records(options.path / INDEX)
        count = max(self._manifest.samples, len(self._records))
        super().__init__([Entry(place=f"{INDEX}#{row}", row=row) for row in range(count)], {})
        self._size = lru_cache(maxsize=None)(self._size_of)

    def facts(self) -> SourceFacts:
        """As `StateSource.facts`."""
        manifest = self._manifest
        notes = ["The last slot had the final norm applied, which can't be undone."]
        aux = [layer + 1 for layer in manifest.layers]
        if self._final is None:
            notes.append(
                f"Slots are the canonical layers {', '.join(map(str, aux))} and the final one."
            )
        if manifest.dtype in FLOAT8:
            notes.append(
                f"The states were cast to {manifest.dtype} without a scale when they were "
                "extracted; they come in as bfloat16 and are no better for it."
            )
        return SourceFacts(
            slots=self.first.slots,
            layers=None if self._final is None else [*aux, self._final],
            norm_state=NormState.POST,
            dtype="bfloat16",
            model=manifest.model,
            notes=notes,
        )

    def _check_layers(self) -> None:
        layers, final = self._manifest.layers, self._final
        if final is not None and not all(-1 <= layer < final - 1 for layer in layers):
            raise InputError(
                f"{self._folder / MANIFEST} says target_layer_ids {layers}; a target of {final} "
                f"layers has -1 to {final - 2} below its final one. Is it the right --model?"
            )

    def _open(self, entry: Entry) -> _Sample:
        place, manifest = entry.place, self._manifest
        if entry.row >= manifest.samples or entry.row >= len(self._records):
            raise refusals.damaged(
                place,
                f"the index has {len(self._records)} records, the manifest {manifest.samples}",
                "as many records as samples",
            )
        record = {name: int(self._records[name][entry.row]) for name in _RECORD.names or ()}
        if record["sample"] != entry.row or record["shard"] >= len(manifest.shards):
            raise refusals.damaged(
                place,
                f"record {entry.row} is of sample {record['sample']} in shard {record['shard']}",
                f"sample {entry.row} in one of {len(manifest.shards)} shards",
            )
        shard = self._folder / manifest.shards[record["shard"]]
        sample = _Sample(manifest=manifest, record=record, shard=shard, place=place)
        try:
            size = self._size(shard)
        except OSError as error:
            raise unreadable(error, place) from None
        if sample.end > size:
            raise refusals.damaged(
                place, f"{shard.name} is of {size} bytes", f"at least {sample.end}"
            )
        return sample

    @staticmethod
    def _size_of(shard: Path) -> int:
        return shard.stat().st_size


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One record whose bytes are there."""

    manifest: _Manifest
    record: dict[str, int]
    shard: Path
    place: str

    @property
    def stored(self) -> Stored:
        return Stored(slots=len(self.manifest.layers) + 1, dtype=self.manifest.dtype)

    @property
    def end(self) -> int:
        """Where the last of its arrays ends in the shard."""
        return max(self.record[name] + nbytes for name, nbytes in self._nbytes().items())

    def tokens(self) -> Tokens:
        ids = token_ids(self._read("input_ids").view("<i4"), self.place)
        return Tokens(
            input_ids=ids, loss_mask=loss_mask(self._read("loss_mask"), len(ids), self.place)
        )

    def states(self) -> list[npt.NDArray[Any]]:
        tokens, width = self.record["tokens"], self.manifest.hidden_size
        aux = self._values("states").reshape(tokens, width * len(self.manifest.layers))
        return [*split(aux, width), self._values("last").reshape(tokens, width)]

    def _values(self, name: str) -> npt.NDArray[np.uint16]:
        stored = self._read(name)
        table = FLOAT8_AS_BFLOAT16.get(self.manifest.dtype)
        return stored.view("<u2") if table is None else table[stored]

    def _read(self, name: str) -> npt.NDArray[np.uint8]:
        file = open_file(self.shard, self.place)
        return read_range(file, self.record[name], self._nbytes()[name], self.place)

    def _nbytes(self) -> dict[str, int]:
        tokens = self.record["tokens"]
        state = tokens * self.manifest.hidden_size * self.manifest.itemsize
        return {
            "input_ids": 4 * tokens,
            "attention_mask": tokens,
            "loss_mask": tokens,
            "states": len(self.manifest.layers) * state,
            "last": state,
        }


def _manifest(path: Path) -> _Manifest:
    try:
        told = json.loads(path.read_bytes())
        version, record_size = int(told["version"]), int(told["index_record_size"])
        manifest = _Manifest(
            samples=int(told["num_samples"]),
            layers=[int(layer) for layer in told["target_layer_ids"]],
            hidden_size=int(told["hidden_size"]),
            dtype=str(told["hidden_dtype"]),
            # Only names: the shards lie beside the manifest.
            shards=[Path(str(shard["file_name"])).name for shard in told["shards"]],
            model=told.get("target_model_name_or_path"),
        )
        dtypes = (manifest.dtype, told["token_dtype"], told["mask_dtype"])
    except OSError as error:
        raise InputError(
            f"{path} can't be read: {error.strerror}. Name the folder of a finished target cache."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not the manifest of a target cache: {type(error).__name__} {error}."
        ) from None
    known = dtypes[0] in {"bfloat16", *FLOAT8} and dtypes[1:] == ("int32", "uint8")
    if version != _VERSION or record_size != _RECORD.itemsize or not known or not manifest.layers:
        raise InputError(
            f"{path} is of version {version} with records of {record_size} bytes and "
            f"{', '.join(map(str, dtypes))}; known are version {_VERSION}, {_RECORD.itemsize} "
            f"bytes, and bfloat16 or {' or '.join(FLOAT8)}, int32, uint8."
        )
    return manifest


def _records(path: Path) -> npt.NDArray[np.void]:
    """Whole records; what is left of a torn one is no record."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} can't be read: {error.strerror}. Name the folder of a finished target cache."
        ) from None
    return np.frombuffer(stored, _RECORD, len(stored) // _RECORD.itemsize)
