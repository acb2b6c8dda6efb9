"""The manifest: what a data set is, whose states it holds and how they were captured.

It lives in the root group's attributes under `eagle3data` and is written before the first
shard. Strict: an unknown key is an error, unless a newer minor version wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from eagle3data.schema.axis import SizeArithmetic, TokenAxis, choose_axis
from eagle3data.schema.digest import json_digest
from eagle3data.schema.errors import InputError, LayerError, ManifestError
from eagle3data.schema.layers import (
    NormState,
    Numbering,
    default_layers,
    missing_final_layer,
    parse_layers,
)

FORMAT: Final = "eagle3data"
MAJOR, MINOR = 1, 0
SYNTHETIC_LENGTHS = [2048]
"""Sample lengths assumed where a manifest is made before any sample is known."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StorageDtype(StrEnum):
    """How a state's numbers are stored; bfloat16 lies in the arrays as uint16 bits."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def item_bytes(self) -> int:
        return 2


class Codec(StrEnum):
    """Compression profile of the state arrays."""

    NONE = "none"
    LZ4 = "lz4"
    PCODEC = "pcodec"


# Strict models take enums only as enums; JSON brings strings.
_Dtype = Annotated[StorageDtype, Field(strict=False)]
_Codec = Annotated[Codec, Field(strict=False)]
_NormState = Annotated[NormState, Field(strict=False)]
_Numbering = Annotated[Numbering, Field(strict=False)]


class TargetModel(_Strict):
    """The model whose states these are."""

    name: str = Field(description="Hugging Face id or folder name of the target.")
    revision: str | None = Field(default=None, description="Hub revision, where one is known.")
    config_digest: str = Field(description="sha256 of the model's config in canonical JSON.")
    architecture: str = Field(description="First entry of the config's `architectures`.")
    model_type: str
    num_hidden_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    quantization: str | None = None


class Tokenizer(_Strict):
    """The tokenizer and chat template that made the token ids."""

    digest: str | None = Field(description="sha256 of the tokenizer's own file.")
    chat_template_digest: str | None = None


class Capture(_Strict):
    """How the states were taken."""

    engine: str = Field(description="transformers, vllm, import, synthetic, ...")
    engine_version: str
    numbering: _Numbering = Field(
        default=Numbering.CANONICAL, description="Numbering of `layers`; always canonical in v1."
    )
    layers: list[int] = Field(min_length=1, description="Ascending canonical ids.")
    dtype: str = Field(description="dtype the model ran in.")
    norm_state: _NormState = Field(default=NormState.PRE)
    switches: dict[str, str] = Field(
        default_factory=dict, description="Engine settings that change the states."
    )

    @field_validator("layers")
    @classmethod
    def _ascending(cls, layers: list[int]) -> list[int]:
        if sorted(set(layers)) != layers or layers[0] < 0:
            raise ValueError(f"layers {layers} must ascend, not repeat and not be negative")
        return layers


class Storage(_Strict):
    """How the arrays are cut and stored."""

    dtype: _Dtype = StorageDtype.FLOAT16
    codec: _Codec = Codec.NONE
    shard_tokens: int = Field(gt=0, description="S: tokens a shard spans.")
    chunk_tokens: int = Field(gt=0, description="C: tokens a chunk spans.")

    @property
    def axis(self) -> TokenAxis:
        return TokenAxis(shard_tokens=self.shard_tokens, chunk_tokens=self.chunk_tokens)


class Manifest(_Strict):
    """Everything about a data set that is not in its rows."""

    format: Literal["eagle3data"] = FORMAT
    version: str = Field(default=f"{MAJOR}.{MINOR}", pattern=r"^\d+\.\d+$")
    target: TargetModel
    tokenizer: Tokenizer
    capture: Capture
    storage: Storage
    plan_digest: str | None = Field(
        default=None, description="Order-sensitive digest of the first plan; None if unplanned."
    )
    provenance: dict[str, str] = Field(default_factory=dict)
    extensions: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _layers_exist(self) -> Self:
        n = self.target.num_hidden_layers
        if self.capture.layers[-1] > n:
            raise ValueError(
                f"captured layer {self.capture.layers[-1]} is above the target's last id, {n}"
            )
        return self

    @property
    def layers(self) -> list[int]:
        """Captured layers, ascending canonical ids."""
        return self.capture.layers

    @property
    def aux_layers(self) -> list[int]:
        """Captured layers below the final one."""
        return [layer for layer in self.layers if layer != self.final_layer]

    @property
    def final_layer(self) -> int:
        """N: the id of what leaves the last decoder layer (captured or not)."""
        return self.target.num_hidden_layers

    @property
    def hidden_size(self) -> int:
        return self.target.hidden_size

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's state at one layer, uncompressed."""
        return self.hidden_size * self.storage.dtype.item_bytes

    def size_arithmetic(self, lengths: Sequence[int]) -> SizeArithmetic:
        """Bytes that samples of these lengths (tokens) take in a set of this shape."""
        axis = self.storage.axis
        return SizeArithmetic(
            tokens=sum(lengths),
            layers=len(self.layers),
            hidden_size=self.hidden_size,
            item_bytes=self.storage.dtype.item_bytes,
            aligned_tokens=sum(axis.aligned(length) for length in lengths),
        )

    @property
    def warnings(self) -> list[str]:
        """Sentences about what is legal here but has gone wrong for others."""
        found = missing_final_layer(self.layers, self.final_layer)
        return [found] if found else []

    @property
    def identity(self) -> str:
        """Digest of what two runs must share for their shards to belong together.

        Model, revision, layers, dtypes, norm state, tokenizer, template, axis and codec;
        not the host, the time or the version of the engine.
        """
        return json_digest(
            {
                "target": self.target.model_dump(mode="json", exclude={"name"}),
                "tokenizer": self.tokenizer.model_dump(mode="json"),
                "engine": self.capture.engine,
                "layers": self.layers,
                "capture_dtype": self.capture.dtype,
                "norm_state": self.capture.norm_state.value,
                "storage": self.storage.model_dump(mode="json"),
            }
        )

    def differences(self, other: Manifest) -> list[str]:
        """What keeps the two from being the same data set, as `field: here, there`."""
        mine, theirs = self.model_dump(mode="json"), other.model_dump(mode="json")
        ignored = {"provenance", "extensions", "version"}
        found: list[str] = []
        for section in mine:
            if section in ignored or mine[section] == theirs[section]:
                continue
            if not isinstance(mine[section], dict):
                found.append(f"{section}: {mine[section]}, {theirs[section]}")
                continue
            found += [
                f"{section}.{key}: {mine[section][key]}, {theirs[section][key]}"
                for key in mine[section]
                if mine[section][key] != theirs[section][key]
                and (section, key) not in {("target", "name"), ("capture", "engine_version")}
            ]
        return found

    @classmethod
    def from_json(cls, value: Any, where: str) -> Manifest:
        """Check a manifest read from `where`.

        Raises:
            ManifestError: not a manifest, a newer major version, or a field that is wrong.
        """
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ManifestError(f"{where} holds no eagle3data manifest; is it an eagle3data set?")
        version = str(value.get("version", ""))
        major, _, minor = version.partition(".")
        if not re.fullmatch(r"[0-9]+\.[0-9]+", version):
            raise ManifestError(f"{where}: the manifest's version is {version!r}, expected '1.0'.")
        if int(major) > MAJOR:
            raise ManifestError(
                f"{where}: format version {version}, this eagle3data reads up to {MAJOR}.x. "
                "Upgrade eagle3data."
            )
        newer_minor = int(major) == MAJOR and int(minor) > MINOR
        try:
            return cls.model_validate(value, extra="ignore" if newer_minor else "forbid")
        except ValidationError as error:
            details = "; ".join(
                f"{'.'.join(map(str, item['loc'])) or 'manifest'}: {item['msg']}"
                for item in error.errors()
            )
            raise ManifestError(f"{where}: the manifest is not valid: {details}.") from None

    @classmethod
    def for_model(
        cls,
        model: str,
        *,
        layers: str | list[int] = "auto",
        numbering: Numbering | None = None,
        storage_dtype: str = "float16",
        codec: str = "none",
        axis: TokenAxis | None = None,
        engine: str = "unknown",
        engine_version: str = "",
        capture_dtype: str = "bfloat16",
        norm_state: NormState = NormState.PRE,
        revision: str | None = None,
        provenance: dict[str, str] | None = None,
    ) -> Manifest:
        """A manifest for the states of a model, from its folder's (or hub id's) own files.

        Args:
            model: Hugging Face folder or id.
            layers: `auto`, ids separated by commas, or a list of ids.
            numbering: whose ids they are; needed for a list without the final layer.
            axis: shards and chunks; by default about 250 MB an object and 1 MB a chunk.

        Raises:
            InputError: the folder lacks a config or its config lacks what is needed.
            LayerError: layers that the model doesn't have.
        """
        from eagle3data.schema.target import describe_target

        target, tokenizer = describe_target(model, revision)
        text = layers if isinstance(layers, str) else ",".join(map(str, layers))
        return cls._assemble(
            target=target,
            tokenizer=tokenizer,
            layers=parse_layers(text, target.num_hidden_layers, numbering),
            storage_dtype=storage_dtype,
            codec=codec,
            axis=axis,
            capture={
                "engine": engine,
                "engine_version": engine_version,
                "dtype": capture_dtype,
                "norm_state": norm_state,
            },
            provenance=provenance,
        )

    @classmethod
    def synthetic(
        cls,
        *,
        hidden_size: int,
        num_hidden_layers: int,
        vocab_size: int,
        layers: list[int] | None = None,
        storage_dtype: str = "float16",
        codec: str = "none",
        axis: TokenAxis | None = None,
    ) -> Manifest:
        """A manifest without a model, for benchmarks and tests."""
        target = TargetModel(
            name="synthetic",
            config_digest=json_digest([hidden_size, num_hidden_layers, vocab_size]),
            architecture="Synthetic",
            model_type="synthetic",
            num_hidden_layers=num_hidden_layers,
            hidden_size=hidden_size,
            vocab_size=vocab_size,
        )
        return cls._assemble(
            target=target,
            tokenizer=Tokenizer(digest=None),
            layers=layers if layers is not None else default_layers(num_hidden_layers),
            storage_dtype=storage_dtype,
            codec=codec,
            axis=axis,
            capture={"engine": "synthetic", "engine_version": "1", "dtype": storage_dtype},
        )

    @classmethod
    def _assemble(
        cls,
        *,
        target: TargetModel,
        tokenizer: Tokenizer,
        layers: list[int],
        storage_dtype: str,
        codec: str,
        axis: TokenAxis | None,
        capture: dict[str, Any],
        provenance: dict[str, str] | None = None,
    ) -> Manifest:
        dtype = _choice(StorageDtype, storage_dtype, "storage dtype")
        if layers[-1] > target.num_hidden_layers:
            raise LayerError(
                f"layer {layers[-1]} is above the target's last id, {target.num_hidden_layers}."
            )
        row_bytes = target.hidden_size * dtype.item_bytes
        axis = axis or choose_axis(SYNTHETIC_LENGTHS * 100_000, row_bytes)
        return cls(
            target=target,
            tokenizer=tokenizer,
            capture=Capture(layers=layers, **capture),
            storage=Storage(
                dtype=dtype,
                codec=_choice(Codec, codec, "codec"),
                shard_tokens=axis.shard_tokens,
                chunk_tokens=axis.chunk_tokens,
            ),
            provenance=provenance or {},
        )


_Choice = TypeVar("_Choice", bound=StrEnum)


def _choice(kind: type[_Choice], value: str, what: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"{what} {value!r}: expected {' or '.join(kind)}.") from None


def manifest_json_schema() -> str:
    """The manifest's JSON Schema, as text."""
    return json.dumps(Manifest.model_json_schema(), indent=2) + "\n"
