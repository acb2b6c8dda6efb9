"""What a run is made of, checked before anything is computed: data, target, draft, vocabulary."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from eagle3data.readers.dataset import Dataset, open_dataset
from eagle3data.readers.loader import StreamingLoader
from eagle3data.schema.errors import InputError
from eagle3data.schema.layers import NormState, missing_final_layer
from eagle3data.schema.machine import has_bfloat16_units
from eagle3data.schema.manifest import Manifest, TargetModel
from eagle3data.schema.target import describe_target, model_folder, text_config
from eagle3data.storage.model_weights import TargetHead, load_embeddings, load_head
from eagle3data.trainer.attention import SMALLEST_HEAD
from eagle3data.trainer.config import (
    MAY_CHANGE_ON_RESUME,
    ModelSection,
    TrainConfig,
    TrainSection,
    flat,
)
from eagle3data.trainer.draft import AUX_STATES, Draft, DraftConfig
from eagle3data.trainer.learner import Subject
from eagle3data.trainer.saved import DraftDescription, SavedDraft
from eagle3data.trainer.start import starting_draft
from eagle3data.trainer.ttt import Speed
from eagle3data.trainer.vocab import VocabularyMap, count_tokens


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Everything the loop works on.

    Attributes:
        config: the run's settings, the optimiser chosen.
        dataset: the data set; the first one of several.
        more: those that are mixed with it.
        loader: its training split; batches hold the aux layers, then the final one.
        draft: on `device`.
        head: the target's, on `device`, lm_head in the dtype that its product is done in.
        vocabulary: the draft's tokens; `draft_ids` is the same as `[Vd]` int64 on `device`.
        commonest_token: the target token that most often carries loss.
        post_norm: the data set's final states carry the final norm already.
        description: whose draft this is.
        device: where the run computes.
        speed: how.
    """

    config: TrainConfig
    dataset: Dataset
    more: list[Dataset]
    loader: StreamingLoader
    draft: Draft
    head: TargetHead
    vocabulary: VocabularyMap
    draft_ids: torch.Tensor
    commonest_token: int
    post_norm: bool
    description: DraftDescription
    device: torch.device
    speed: Speed

    @property
    def sets(self) -> list[Dataset]:
        """All data sets."""
        return [self.dataset, *self.more]

    @property
    def subject(self) -> Subject:
        """What the learner works on."""
        return Subject(
            draft=self.draft,
            head=self.head,
            draft_ids=self.draft_ids,
            commonest_token=self.commonest_token,
            post_norm=self.post_norm,
            device=self.device,
            speed=self.speed,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the one that it continues."""
        settings = {
            key: value
            for key, value in flat(self.config).items()
            if key not in MAY_CHANGE_ON_RESUME
        }
        return {
            **settings,
            "data set": self.description.data_set,
            "device type": self.device.type,
        }

    def held_out(self) -> StreamingLoader | None:
        """A fresh pass over the held-out split in a fixed order; None if nothing is held out."""
        if self.config.data.eval_split is None:
            return None
        return StreamingLoader(
            [one for one in self.sets if _has(one, self.config.data.eval_split)],
            token_budget=self.config.data.token_budget,
            layers=self.loader.layers,
            split=self.config.data.eval_split,
            over_budget=self.config.data.over_budget,
            shuffle=False,
            verify=self.config.data.verify,
            device=self.device,
        )

    def saved_draft(self, parameters: dict[str, torch.Tensor]) -> SavedDraft:
        """The draft with these parameters."""
        return SavedDraft(
            description=self.description, parameters=parameters, vocabulary=self.vocabulary
        )


def gather(
    url: str,
    model: str,
    config: TrainConfig,
    revision: str | None = None,
    device: torch.device | None = None,
) -> Inputs:
    """Open the data set, read the target's weights, build the draft.

    Args:
        url: data set.
        model: the target, Hugging Face folder or id.
        config: the run's settings.
        revision: hub revision of the target.
        device: this process's, if not what `train.device` says.

    Raises:
        InputError: a data set and a model that don't belong together, or settings that can't be.
    """
    sets = [open_dataset(one) for one in (url, *config.data.more)]
    dataset = sets[0]
    target, _ = describe_target(model, revision)
    of_each = [check_dataset(one.manifest, target, config.model, one.url) for one in sets]
    aux_layers = of_each[0]  # that the others have them too is what the loader asks for
    check_splits(sets, config)
    norm_state = check_norms(sets)
    chosen, dtype = choose_device(config.train.device, config.train.autocast)
    device = device or chosen
    # On a CPU Muon's products take longer than the step, most of all where bfloat16 is emulated.
    muon_runs = device.type != "cpu" and config.train.parallel != "fsdp2"
    optimizer = config.optimizer.chosen(muon_runs=muon_runs)
    config = config.model_copy(update={"optimizer": optimizer})
    by_set = [count_tokens(o.index, target.vocab_size, config.data.train_split) for o in sets]
    counts = np.sum(by_set, axis=0)
    wanted = min(config.model.draft_vocab_size, target.vocab_size)
    embeddings = load_embeddings(model, revision)
    start = starting_draft(config.model, target, aux_layers, embeddings)
    vocabulary = start.vocabulary if start else VocabularyMap.most_frequent(counts, wanted)
    target_config = json.loads((model_folder(model, revision) / "config.json").read_text())
    shape = (
        start.description.config
        if start
        else DraftConfig.from_target(
            text_config(target_config),
            draft_vocab_size=wanted,
            norm_before_residual=config.model.norm_before_residual,
            fc_norm=config.model.fc_norm,
            norm_output=config.model.norm_output,
            num_hidden_layers=config.model.num_hidden_layers,
            intermediate_size=config.model.intermediate_size,
            num_attention_heads=config.model.num_attention_heads,
            num_key_value_heads=config.model.num_key_value_heads,
            head_dim=config.model.head_dim,
            rope_parameters=config.model.rope_parameters,
        )
    )
    head = load_head(model, revision)
    torch.manual_seed(config.train.seed)
    draft = Draft(shape, embeddings)
    if start:
        draft.load_state_dict(start.parameters)
    draft_ids = torch.from_numpy(vocabulary.draft_ids)
    if config.model.lm_head != "scratch" and not start:
        draft.lm_head.weight.data.copy_(head.lm_head[draft_ids])
    draft.lm_head.weight.requires_grad_(config.model.lm_head != "frozen")
    return Inputs(
        config=config,
        dataset=dataset,
        more=sets[1:],
        loader=StreamingLoader(
            sets,
            token_budget=config.data.token_budget,
            weights=config.data.weights,
            over_budget=config.data.over_budget,
            seed=config.train.seed,
            layers=[*aux_layers, dataset.manifest.final_layer],
            split=config.data.train_split,
            verify=config.data.verify,
            device=device,
            target=None if config.data.allow_other_target else model,
            revision=revision,
        ),
        draft=draft.to(device),
        head=replace(head, lm_head=head.lm_head.to(dtype)).to(device),
        vocabulary=vocabulary,
        draft_ids=draft_ids.to(device),
        commonest_token=int(counts.argmax()),
        post_norm=norm_state is NormState.POST,
        description=DraftDescription(
            config=shape,
            target=model,
            target_architecture=target.architecture,
            target_layers=target.num_hidden_layers,
            aux_layers=aux_layers,
            ttt_steps=config.train.ttt_steps,
            data_set=" ".join(one.manifest.identity for one in sets),
        ),
        device=device,
        speed=choose_speed(config.train, device, dtype, shape.head_dim),
    )


def check_dataset(
    manifest: Manifest, target: TargetModel, section: ModelSection, url: str
) -> list[int]:
    """Refuse a data set that no draft of this target can be trained on.

    Returns:
        The three aux layers to use, ascending canonical ids.

    Raises:
        InputError: sizes that differ from the model's, no final layer, or no three aux layers.
    """
    sizes = ("num_hidden_layers", "hidden_size", "vocab_size")
    differing = [
        f"{name} is {getattr(manifest.target, name)} in the data set and {getattr(target, name)} "
        "in the model"
        for name in sizes
        if getattr(manifest.target, name) != getattr(target, name)
    ]
    if differing:
        raise InputError(
            f"{url} holds states of {manifest.target.name}, not of {target.name}: "
            f"{'; '.join(differing)}. Give the model that the states were taken from."
        )
    missing = missing_final_layer(manifest.layers, manifest.final_layer)
    if missing:
        raise InputError(f"{url} can't teach: {missing} Extract again with --layers auto.")
    aux_layers = section.aux_layers or manifest.aux_layers
    if len(aux_layers) != AUX_STATES or not set(aux_layers) <= set(manifest.aux_layers):
        raise InputError(
            f"EAGLE-3 fuses {AUX_STATES} aux layers; {url} has {manifest.aux_layers} below the "
            f"final one and model.aux_layers is {section.aux_layers}. Choose {AUX_STATES} of them "
            "with model.aux_layers, or extract again with --layers auto."
        )
    return sorted(aux_layers)


def check_splits(sets: list[Dataset], config: TrainConfig) -> None:
    """Refuse a split that no sample is of; of several sets one may hold out for all.

    Raises:
        InputError: says which splits there are, and how to train without one.
    """
    for key, enough in (("train_split", all), ("eval_split", any)):
        wanted = getattr(config.data, key)
        lacking = [one for one in sets if not _has(one, wanted)]
        if lacking and not enough(one not in lacking for one in sets):
            names = sorted({str(split) for split in lacking[0].index["split"].to_pylist()})
            raise InputError(
                f"{lacking[0].url} has no sample of split {wanted!r} (data.{key}); its splits are "
                f"{', '.join(names)}. Name one of them, or set data.{key}=null: then "
                f"{'every sample is trained on' if key == 'train_split' else 'none is held out'}."
            )


def _has(dataset: Dataset, split: str | None) -> bool:
    return split is None or split in dataset.index["split"].to_pylist()


def check_norms(sets: list[Dataset]) -> NormState:
    """Whether final states carry the final norm: the same in all sets, or the teacher is wrong.

    Raises:
        InputError: names two sets that differ.
    """
    first = sets[0]
    for other in sets[1:]:
        if other.manifest.capture.norm_state is not first.manifest.capture.norm_state:
            raise InputError(
                f"{other.url} holds final states {other.manifest.capture.norm_state.value}-norm, "
                f"{first.url} {first.manifest.capture.norm_state.value}-norm. Train on sets that "
                "were extracted alike."
            )
    return first.manifest.capture.norm_state


def choose_device(device: str, autocast: str) -> tuple[torch.device, torch.dtype]:
    """Turn `train.device` and `train.autocast` into a device and the dtype of matrix products.

    `auto` takes bfloat16 on CUDA, and on CPUs with bfloat16 matrix units: others only emulate it.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"train.device is {device!r}; expected auto, cpu or cuda.") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"train.device is {device!r}, but torch sees no GPU here.")
    fast = chosen.type != "cpu" or has_bfloat16_units()
    use = autocast == "bfloat16" or (autocast == "auto" and fast)
    return chosen, torch.bfloat16 if use else torch.float32


def choose_speed(
    section: TrainSection, device: torch.device, dtype: torch.dtype, head_dim: int
) -> Speed:
    """Turn `train.attention`, `train.compile` and `train.checkpointing` into what is run.

    Raises:
        InputError: flex attention where its kernel can't run.
    """
    compile_it = device.type == "cuda" if section.compile is None else section.compile
    runs = device.type == "cuda" and head_dim >= SMALLEST_HEAD
    if section.attention == "flex" and not runs:
        raise InputError(
            f"train.attention is flex, which needs CUDA and heads of at least {SMALLEST_HEAD}; "
            f"here are {device.type} and heads of {head_dim}. Leave it at auto."
        )
    return Speed(
        dtype=dtype,
        flex=runs and section.attention != "plain",
        compile=compile_it,
        checkpoint=section.checkpointing,
    )
