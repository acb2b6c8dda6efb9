"""The plan: which sample goes where, known before a GPU is used (prefill only)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3data.extractor.prompts import PromptsFile
from eagle3data.schema.axis import SizeArithmetic, TokenAxis, choose_axis
from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.errors import InputError, MismatchError
from eagle3data.schema.index import list_values, plan_digest, plan_rows
from eagle3data.schema.layers import NormState, Numbering
from eagle3data.schema.manifest import Manifest


@dataclass(frozen=True)
class Plan:
    """Samples laid out on the token axis.

    Attributes:
        manifest: of the data set to be, with this plan's digest.
        table: `PLAN_SCHEMA`, in token order, one row a prompt.
        shards: how many the samples take.
        prompts_digest: of the prompts file: its samples in order, masks included.
    """

    manifest: Manifest
    table: pa.Table
    shards: int
    prompts_digest: str

    @property
    def facts(self) -> dict[str, Any]:
        """What the plan's file says about itself."""
        return {
            "digest": self.manifest.plan_digest,
            "first_shard": 0,
            "shards": self.shards,
            "prompts": self.prompts_digest,
        }

    @property
    def sizes(self) -> SizeArithmetic:
        """Bytes that the data set will take."""
        return self.manifest.size_arithmetic(self.table["length"].to_numpy().tolist())

    @property
    def samples_per_shard(self) -> list[int]:
        """How many samples each shard holds."""
        return list(np.bincount(self.table["shard"].to_numpy()).tolist())


def make_plan(
    prompts: PromptsFile,
    model: str,
    *,
    revision: str | None = None,
    layers: str = "auto",
    numbering: Numbering | None = None,
    dtype: str = "float16",
    codec: str = "none",
    shard_tokens: int | None = None,
    axis: TokenAxis | None = None,
    engine: str = "unknown",
    engine_version: str = "",
    compute_dtype: str = "",
    norm_state: NormState = NormState.PRE,
    provenance: dict[str, str] | None = None,
) -> Plan:
    """Lay the prompts out in their order.

    Args:
        prompts: what `prepare` wrote.
        model: Hugging Face folder or id of the target.
        layers: `auto` or ids separated by commas.
        numbering: whose ids they are, where not ours.
        dtype: storage dtype, `float16` or `bfloat16`.
        codec: storage profile.
        norm_state: of the final layer.
        shard_tokens: S; chosen from the prompts by default.
        axis: S and C of a set that is appended to.

    Raises:
        MismatchError: the prompts were made with another tokenizer or chat template.
        InputError, LayerError: prompts or layers that this model can't have.
    """
    lengths = [int(length) for length in prompts.lengths]
    if not lengths:
        raise InputError(f"{prompts.path} holds no samples; see its rejects file for the reasons.")
    settings: dict[str, Any] = {
        "layers": layers,
        "numbering": numbering,
        "storage_dtype": dtype,
        "codec": codec,
        "revision": revision,
        "engine": engine,
        "engine_version": engine_version,
        "capture_dtype": compute_dtype,
        "norm_state": norm_state,
        "provenance": provenance,
    }
    draft = Manifest.for_model(model, **settings)
    _require_same_tokenizer(prompts, draft, model)
    axis = axis or choose_axis(lengths, draft.row_bytes, shard_tokens)
    manifest = Manifest.for_model(model, **settings, axis=axis)
    names = [str(name) for name in prompts.table["sample_id"].to_pylist()]
    checksums = [
        tokens_crc32c(list_values(prompts.table["input_ids"], row)) for row in range(len(lengths))
    ]
    table = plan_rows(axis, names, lengths, checksums)
    # The mask is trained on too: a plan over other masks is another plan.
    digest = plan_digest(f"{manifest.identity}:{prompts.digest}", table)
    return Plan(
        manifest.model_copy(update={"plan_digest": digest}),
        table,
        int(table["shard"][-1].as_py()) + 1,
        prompts.digest,
    )


def _require_same_tokenizer(prompts: PromptsFile, manifest: Manifest, model: str) -> None:
    if prompts.tokenizer != manifest.tokenizer:
        raise MismatchError(
            f"{prompts.path} was prepared with another tokenizer or chat template than {model} has "
            f"(tokenizer {prompts.tokenizer.digest}, template "
            f"{prompts.tokenizer.chat_template_digest}; the model's are "
            f"{manifest.tokenizer.digest}, {manifest.tokenizer.chat_template_digest}). "
            "Run `eagle3data prepare` with this model."
        )
