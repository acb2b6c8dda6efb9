"""The configuration of a training run: strict sections from YAML and `section.key=value`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3data.schema.errors import InputError
from eagle3data.trainer.loss import Loss
from eagle3data.trainer.shift import MaskAlignment


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(_Section):
    """The draft; sizes left out are the target's."""

    init_from: str | None = Field(
        default=None,
        description="Start from this draft: a run, a checkpoint, a published folder or hub id.",
    )
    init_revision: str | None = Field(default=None, description="Hub revision of init_from.")
    init_numbering: Literal["vllm", "sglang"] | None = Field(
        default=None, description="Whose layer ids init_from holds; null: as its layout means."
    )
    draft_vocab_size: int = Field(default=32_000, gt=0, description="At most the target's.")
    aux_layers: list[int] | None = Field(
        default=None, description="Three captured layers (canonical ids); needed if there are more."
    )
    norm_before_residual: bool = False
    fc_norm: bool = Field(default=False, description="EAGLE-3.1: a norm on each aux state.")
    norm_output: bool = Field(default=False, description="EAGLE-3.1: feed the normed state back.")
    num_hidden_layers: int = Field(default=1, gt=0)
    lm_head: Literal["scratch", "copied", "frozen"] | None = Field(
        default=None,
        description="copied: begins as the target's; frozen: and stays so; null: copied, or "
        "init_from's own.",
    )
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rope_parameters: dict[str, Any] | None = None


class DataSection(_Section):
    """Which samples, and how they are packed."""

    more: list[str] = Field(default=[], description="Data sets that are mixed with the first.")
    weights: list[float] | None = Field(
        default=None,
        description="Share of an epoch's tokens from each set; null: each sample comes once.",
    )
    token_budget: int = Field(default=8192, gt=0, description="Rows of a packed batch.")
    over_budget: Literal["refuse", "split"] = Field(
        default="refuse", description="Of samples over the budget; split: into documents."
    )
    train_split: str | None = Field(default="train", description="null: every sample.")
    eval_split: str | None = Field(default="eval", description="null: nothing is held out.")
    verify: Literal["states", "bytes", "none"] = Field(
        default="bytes", description="How closely each sample is checked as it is read."
    )
    allow_other_target: bool = Field(
        default=False,
        description="Train against a model of the same sizes but another config or tokenizer.",
    )
    allow_misaligned: bool = Field(
        default=False,
        description="Train although a probe says that states are not those of their tokens.",
    )


class OptimizerSection(_Section):
    """The optimiser and its schedule."""

    name: Literal["auto", "adamw", "muon"] = Field(
        default="auto",
        description="muon: for the hidden matrices; lm_head and norms stay AdamW's. auto: muon, "
        "but adamw on a CPU and under fsdp2.",
    )
    learning_rate: float | None = Field(
        default=None, gt=0, description="The highest; null: 1e-3 with muon, 1e-4 with adamw."
    )
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="AdamW's.")
    momentum: float = Field(default=0.95, ge=0, lt=1, description="Muon's.")
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["cosine", "linear"] = "cosine"
    warmup_share: float = Field(default=0.015, ge=0, lt=1, description="Of all steps.")
    max_grad_norm: float = Field(default=0.5, gt=0)

    @property
    def peak(self) -> float:
        """Learning rate after the warm-up."""
        return self.learning_rate or (1e-3 if self.name == "muon" else 1e-4)

    def chosen(self, *, muon_runs: bool) -> OptimizerSection:
        """These settings with neither optimiser nor rate left open.

        Args:
            muon_runs: what `auto` takes.
        """
        name = ("muon" if muon_runs else "adamw") if self.name == "auto" else self.name
        named = self.model_copy(update={"name": name})
        return named.model_copy(update={"learning_rate": named.peak})


class TrainSection(_Section):
    """The loop."""

    epochs: int = Field(default=1, gt=0)
    max_steps: int | None = Field(
        default=None, gt=0, description="Exactly so many steps, over as many epochs as they take."
    )
    accumulation: int = Field(default=1, gt=0, description="Packs a step of the optimiser.")
    ttt_steps: int = Field(default=7, gt=0, description="Training-time-test steps.")
    step_decay: float = Field(
        default=0.8, gt=0, le=1, description="Loss weight of step s: decay^s."
    )
    loss: Loss = Loss.SOFT_CE
    lk_eta: float = Field(default=3.0, ge=0, description="How soon lk_lambda leaves KL.")
    mask_alignment: MaskAlignment = MaskAlignment.SERVING
    seed: int = 0
    device: str = Field(default="auto", description="auto: cuda where there is one.")
    autocast: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto",
        description="Dtype of matrix products; auto: bfloat16 where the device is built for it.",
    )
    parallel: Literal["auto", "none", "ddp", "fsdp2"] = Field(
        default="auto", description="Over torchrun's processes; auto: ddp if there are several."
    )
    attention: Literal["auto", "plain", "flex"] = Field(
        default="auto", description="flex: a fused kernel (CUDA); auto: flex where it runs."
    )
    compile: bool | None = Field(default=None, description="torch.compile; null: on CUDA.")
    checkpointing: bool = Field(
        default=False,
        description="Compute each training-time-test step again for its gradients: less memory.",
    )
    tensorboard: bool = Field(default=False, description="Write the metrics for it too.")
    eval_every: int = Field(default=200, gt=0, description="Steps.")
    eval_packs: int | None = Field(default=None, gt=0, description="null: all held-out packs.")
    save_every: int = Field(default=500, gt=0, description="Steps.")


class TrainConfig(_Section):
    """A whole run."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()


MAY_CHANGE_ON_RESUME = {
    "data.allow_misaligned",
    "data.verify",
    "train.accumulation",
    "train.attention",
    "train.checkpointing",
    "train.compile",
    "train.eval_every",
    "train.parallel",
    "train.save_every",
    "train.tensorboard",
}
"""Settings that don't change what is learned but for rounding, or stand in for more processes."""


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file of sections and apply `section.key=value` over it.

    Args:
        path: YAML file; none for the defaults.
        overrides: each `section.key=value`, the value in YAML.

    Raises:
        InputError: a file that can't be read, an unknown key (the nearest is named), a bad value.
    """
    import yaml

    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = yaml.safe_load(Path(path).read_text()) or {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InputError(f"{path} can't be read as YAML: {error}") from None
    where = str(path) if path is not None else "the configuration"
    if not isinstance(values, dict):
        raise InputError(f"{where} holds {type(values).__name__}, expected sections of keys.")
    for override in overrides:
        key, equals, text = override.partition("=")
        section, dot, name = key.partition(".")
        if not (equals and dot and section and name):
            raise InputError(f"{override!r}: expected section.key=value, as train.epochs=2.")
        if not isinstance(values.setdefault(section, {}), dict):
            raise InputError(f"{where}: {section} is {values[section]!r}, expected a section.")
        try:
            values[section][name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"{override!r}: the value can't be read as YAML.") from None
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: {'; '.join(map(_explain, error.errors()))}.") from None


def flat(config: TrainConfig) -> dict[str, Any]:
    """`section.key` to its value, as JSON would hold it."""
    sections = config.model_dump(mode="json")
    return {
        f"{name}.{key}": value for name, keys in sections.items() for key, value in keys.items()
    }


def _explain(problem: Any) -> str:
    place = [str(part) for part in problem["loc"]]
    dotted = ".".join(place)
    if problem["type"] != "extra_forbidden":
        return f"{dotted}: {problem['msg']} (found {problem['input']!r})"
    known = flat(TrainConfig())
    if len(place) == 1:
        candidates = sorted({name.partition(".")[0] for name in known})
        near = difflib.get_close_matches(dotted, candidates, n=1, cutoff=0.0)
        return f"unknown section {dotted!r}, did you mean {near[0]!r}?"
    bare = {name.partition(".")[2]: name for name in known}
    near = difflib.get_close_matches(place[-1], bare, n=1)
    if near:
        return f"unknown key {dotted!r}, did you mean {bare[near[0]]!r}?"
    of_section = [name for name in known if name.startswith(f"{place[0]}.")]
    return f"unknown key {dotted!r}; {place[0]} has {', '.join(of_section)}"
