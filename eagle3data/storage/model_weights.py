"""The target's own output head (final norm, lm_head) and embeddings, read from its safetensors.

Only the tensors named here are read, so a head of a trillion-parameter model costs its own
two gigabytes and no more. What the head does with them (a `1 + w` norm, a logit scale, a soft
cap) is kept as data per `model_type`; a type that isn't listed is refused, since a head that
is nearly right gives logits that are quietly wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3data.schema.errors import InputError
from eagle3data.schema.target import model_folder, text_config

if TYPE_CHECKING:
    from torch import Tensor

VOCAB_BLOCK = 16_384
"""Rows of lm_head raised to float32 at a time: bounds the copy to about 0.5 GB at H = 7168."""

_INDEX = "model.safetensors.index.json"
_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "language_model.", "")
_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")

# fmt: off
_PLAIN = (
    "afmoe", "apertus", "arcee", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5",
    "ernie4_5_moe", "exaone4", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa",
    "gpt_oss", "hunyuan_v1_dense", "hunyuan_v1_moe", "kimi_k2", "kimi_linear", "llama",
    "llama4_text", "longcat_flash", "mimo", "mimo_v2_flash", "minimax", "minimax_m2", "ministral",
    "ministral3", "mistral", "mixtral", "olmo2", "olmo3", "olmoe", "phi3", "qwen2", "qwen2_moe",
    "qwen3", "qwen3_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text",
    "seed_oss", "smollm3",
)
# fmt: on
"""`model_type`s whose head is RMSNorm with weight w, then lm_head, and nothing else."""


class UnknownHeadError(InputError):
    """A target whose way from final state to logits is not known here."""


@dataclass(frozen=True, kw_only=True)
class _Style:
    """How a family's head differs from Llama's.

    `scale` and `soft_cap` are config keys with the value the family takes when a config
    leaves them out. `scale_divides`: the config's number divides the logits.
    """

    norm_offset: int = 0
    centred: bool = False
    eps_key: str = "rms_norm_eps"
    scale: tuple[str, float] | None = None
    scale_divides: bool = False
    soft_cap: tuple[str, float | None] | None = None


_CAP = "final_logit_softcapping"
_GEMMA = _Style(norm_offset=1, soft_cap=(_CAP, 30.0))
_COHERE = _Style(centred=True, eps_key="layer_norm_eps", scale=("logit_scale", 0.0625))
_GRANITE = _Style(scale=("logits_scaling", 1.0), scale_divides=True)

_STYLES: dict[str, _Style] = {
    **dict.fromkeys(_PLAIN, _Style()),
    "gemma": _Style(norm_offset=1),
    "gemma2": _GEMMA,
    "gemma3_text": _Style(norm_offset=1, soft_cap=(_CAP, None)),
    "gemma4_text": _Style(soft_cap=(_CAP, None)),
    "vaultgemma": _GEMMA,
    "qwen3_next": _Style(norm_offset=1),
    "qwen3_5_text": _Style(norm_offset=1),
    "qwen3_5_moe_text": _Style(norm_offset=1),
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "granitemoeshared": _GRANITE,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetHead:
    """What turns a final state into logits.

    Attributes:
        norm_weight: `[H]` float32.
        norm_eps: added to the mean square.
        norm_offset: 0, or 1 where the norm multiplies by `1 + weight` (Gemma).
        norm_centred: the norm subtracts the mean first (LayerNorm without bias, Cohere).
        lm_head: `[V, H]` in the dtype it is stored in.
        logit_scale: multiplies the logits.
        soft_cap: logits become `cap * tanh(logits / cap)`, after the scale; None for no cap.
    """

    norm_weight: Tensor
    norm_eps: float
    norm_offset: int
    norm_centred: bool = False
    lm_head: Tensor
    logit_scale: float = 1.0
    soft_cap: float | None = None

    @property
    def vocab_size(self) -> int:
        return int(self.lm_head.shape[0])

    def to(self, device: str | Any) -> TargetHead:
        """The same head with its tensors on `device`."""
        return replace(
            self, norm_weight=self.norm_weight.to(device), lm_head=self.lm_head.to(device)
        )

    def normed(self, states: Tensor) -> Tensor:
        """Apply the final norm to `[T, H]` of any float dtype, in float32; `[T, H]` float32."""
        values = states.float()
        if self.norm_centred:
            values = values - values.mean(-1, keepdim=True)
        scale = values.square().mean(-1, keepdim=True).add(self.norm_eps).rsqrt()
        return values * scale * (self.norm_weight + self.norm_offset)

    def logits(self, states: Tensor, *, post_norm: bool = False) -> Tensor:
        """Logits of `[T, H]` states as the target itself would give them.

        Args:
            states: final-layer states, any float dtype.
            post_norm: the states already carry the final norm.

        Returns:
            `[T, V]` float32, scale and soft cap applied.
        """
        normed = states.float() if post_norm else self.normed(states)
        logits = normed.new_empty((normed.shape[0], self.vocab_size))
        for start in range(0, self.vocab_size, VOCAB_BLOCK):
            block = self.lm_head[start : start + VOCAB_BLOCK].float()  # [<=VOCAB_BLOCK, H]
            logits[:, start : start + VOCAB_BLOCK] = normed @ block.T
        return self.finished(logits)

    def finished(self, products: Tensor) -> Tensor:
        """Logits of raw products with `lm_head`, `[T, V]` float32: scale and soft cap, in place."""
        if self.logit_scale != 1.0:
            products *= self.logit_scale
        if self.soft_cap is not None:
            products.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return products


def load_head(model: str, revision: str | None = None) -> TargetHead:
    """Read a target's final norm and lm_head without loading the model.

    Args:
        model: Hugging Face folder or id.
        revision: hub revision; means nothing for a folder.

    Raises:
        UnknownHeadError: a `model_type` or a set of tensors whose head is not known here.
        InputError: no such model, or weights that are not safetensors.
    """
    weights = _Weights.open(model, revision)
    style = weights.style()
    norm = weights.first([f"{prefix}norm.weight" for prefix in _PREFIXES], "the final norm")
    head = weights.lm_head_name()
    weights.fetch([norm, head])
    norm_weight, lm_head = weights.tensor(norm), weights.tensor(head)
    config = weights.config
    scale = float(config.get(*style.scale)) if style.scale else 1.0
    cap = config.get(*style.soft_cap) if style.soft_cap else None
    if norm_weight.shape != (config["hidden_size"],) or lm_head.shape[1:] != norm_weight.shape:
        raise UnknownHeadError(
            f"{weights.folder}: {norm} is {list(norm_weight.shape)} and {head} is "
            f"{list(lm_head.shape)}, expected [{config['hidden_size']}] and "
            f"[vocabulary, {config['hidden_size']}]."
        )
    return TargetHead(
        norm_weight=norm_weight.float(),
        norm_eps=float(config.get(style.eps_key, 1e-6)),
        norm_offset=style.norm_offset,
        norm_centred=style.centred,
        lm_head=lm_head,
        logit_scale=1.0 / scale if style.scale_divides else scale,
        soft_cap=None if cap is None else float(cap),
    )


def load_embeddings(model: str, revision: str | None = None) -> Tensor:
    """Read a target's input embeddings `[V, H]`, in the dtype they are stored in.

    Raw rows: a target that scales them on the way in (Gemma) does that itself.

    Raises:
        UnknownHeadError: no embeddings under a name that is known here.
        InputError: no such model, or weights that are not safetensors.
    """
    weights = _Weights.open(model, revision)
    name = weights.embeddings_name()
    weights.fetch([name])
    return weights.tensor(name)


@dataclass(kw_only=True)
class _Weights:
    """A model's text config and which safetensors file holds each of its tensors."""

    model: str
    revision: str | None
    folder: Path
    config: dict[str, Any]
    files: dict[str, str]

    @classmethod
    def open(cls, model: str, revision: str | None) -> _Weights:
        folder = model_folder(model, revision, ["config.json", _INDEX])
        try:
            outer = json.loads((folder / "config.json").read_text())
        except ValueError as error:
            raise InputError(f"{folder / 'config.json'} can't be read as JSON: {error}") from None
        config = dict(text_config(outer))
        if "tie_word_embeddings" in outer:
            config.setdefault("tie_word_embeddings", outer["tie_word_embeddings"])
        return cls(
            model=model,
            revision=revision,
            folder=folder,
            config=config,
            files=_files_of(model, revision, folder),
        )

    def style(self) -> _Style:
        model_type = str(self.config.get("model_type", "unknown"))
        style = _STYLES.get(model_type)
        if style is None:
            raise UnknownHeadError(
                f"{self.model}: how a {model_type!r} model gets from its final state to logits is "
                f"not known here. Known: {', '.join(sorted(_STYLES))}. If its head is one of "
                "these in all but name, add it to eagle3data/storage/model_weights.py with a test."
            )
        return style

    def first(self, names: list[str], what: str) -> str:
        """The one of `names` that the files hold, provided it comes without a bias or scales."""
        for name in names:
            if name in self.files:
                stem = name.removesuffix("weight")
                others = [key for key in self.files if key.startswith(stem) and key != name]
                if others:
                    raise UnknownHeadError(
                        f"{self.model}: {what} also has {', '.join(sorted(others))} (a bias, or a "
                        "quantised tensor), which is not understood here."
                    )
                return name
        raise UnknownHeadError(
            f"{self.model}: {what} was not found under {', '.join(names)} in its safetensors."
        )

    def embeddings_name(self) -> str:
        return self.first(
            [f"{prefix}embed_tokens.weight" for prefix in _PREFIXES], "the embeddings"
        )

    def lm_head_name(self) -> str:
        stems = tuple(name.removesuffix("weight") for name in _HEADS)
        own = any(key.startswith(stems) for key in self.files)
        if own or self.config.get("tie_word_embeddings") is False:
            return self.first(list(_HEADS), "lm_head")
        return self.embeddings_name()

    def fetch(self, names: list[str]) -> None:
        """Have the files of these tensors in the folder; a hub id downloads them, and no others."""
        wanted = sorted({self.files[name] for name in names})
        self.folder = model_folder(self.model, self.revision, ["config.json", *wanted])

    def tensor(self, name: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        path = self.folder / self.files[name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: tensor {name} can't be read: {error}") from None


def _files_of(model: str, revision: str | None, folder: Path) -> dict[str, str]:
    """Tensor name to the safetensors file that holds it."""
    from safetensors import SafetensorError, safe_open

    index = folder / _INDEX
    if index.is_file():
        try:
            weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        except (ValueError, KeyError) as error:
            raise InputError(f"{index} has no readable weight_map: {error!r}") from None
        return weight_map
    folder = model_folder(model, revision, ["config.json", "model.safetensors"])
    path = folder / "model.safetensors"
    if not path.is_file():
        raise InputError(
            f"{folder} has neither model.safetensors nor {_INDEX}; expected a Hugging Face folder "
            "with safetensors weights."
        )
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path.name)
    except SafetensorError as error:
        raise InputError(f"{path} is not readable as safetensors: {error}") from None
