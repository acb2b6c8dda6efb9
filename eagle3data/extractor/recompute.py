"""The target itself, run again on single samples: what `validate --recompute` compares with.

It runs in transformers, whichever engine made the set: an engine that captures wrongly would do
it again, and agree with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from eagle3data.extractor.engines.transformers import find_layers, load_model
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.target import checkpoint_dtype, describe_target
from eagle3data.validation.recomputed import Recomputed

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-11}
"""Relative step of a dtype; float32 counts as TF32, in which GPUs may multiply it."""


@dataclass(frozen=True)
class Recompute:
    """Asks `validate` to run the target on some samples and to compare every captured layer.

    Attributes:
        samples: how many.
    """

    samples: int

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"{self.samples} samples to recompute; expected at least 1.")

    def load(
        self, model: str, revision: str | None, manifest: Manifest, *, trust_remote_code: bool
    ) -> TransformersTarget:
        """Load the target in the dtype that the set was captured in, where that is known.

        Raises:
            InputError: weights that can't be loaded, or a model whose layers are not found.
        """
        dtype = manifest.capture.dtype
        return TransformersTarget(
            model,
            compute_dtype=dtype if dtype in ROUNDING else checkpoint_dtype(model, revision),
            revision=revision,
            trust_remote_code=trust_remote_code,
        )


class TransformersTarget:
    """A target loaded with transformers whose whole residual stream is kept.

    Attributes:
        name: versions of transformers and torch.
        compute_dtype: dtype it runs in.
        final_layer: N.
    """

    def __init__(
        self,
        model: str,
        *,
        compute_dtype: str,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        """Load the model.

        Args:
            model: Hugging Face folder or id.
            compute_dtype: `bfloat16`, `float16` or `float32`.

        Raises:
            InputError: weights that can't be loaded, or a model whose layers are not found.
        """
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        loaded = load_model(
            model, compute_dtype=compute_dtype, revision=revision, trust=trust_remote_code
        )
        self._model: nn.Module = loaded.to(self._device)
        self.name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.compute_dtype = str(loaded.dtype).removeprefix("torch.")
        self._rounding = ROUNDING.get(self.compute_dtype, ROUNDING["bfloat16"])
        self._states: dict[int, Tensor] = {}
        self._twins: dict[int, Tensor] = {}
        self._wanted: tuple[Collection[int], Collection[int]] = ((), ())
        self._noise = torch.Generator(device=self._device)
        self.final_layer = describe_target(model, revision)[0].num_hidden_layers
        layers, self._norm = find_layers(self._model, self.final_layer)
        for number, module in enumerate([*layers, self._norm]):
            hook = self._taking(number, is_layer=number < len(layers))
            module.register_forward_pre_hook(hook, with_kwargs=True)

    @torch.inference_mode()
    def run(
        self, input_ids: Sequence[int], layers: Collection[int], twins: Collection[int]
    ) -> Recomputed:
        """Run a sample, and its twin beside it in the same batch."""
        ids = torch.tensor([list(input_ids)] * 2, dtype=torch.long, device=self._device)
        self._wanted = layers, twins
        self._noise.manual_seed(0)
        self._model(input_ids=ids, use_cache=False, logits_to_keep=1)
        found = Recomputed(states=self._states, twins=self._twins)
        self._states, self._twins = {}, {}  # the hooks are not done: `norm` runs one of them
        return found

    @torch.inference_mode()
    def norm(self, states: Tensor) -> Tensor:
        """The final norm of `[T, H]` states, in the dtype that the model runs in."""
        dtype = getattr(torch, self.compute_dtype)
        normed: Tensor = self._norm(states.to(self._device, dtype)[None])[0].cpu()
        return normed

    def _taking(self, layer: int, *, is_layer: bool) -> Callable[..., Any]:
        def take(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            states = args[0] if args else kwargs["hidden_states"]
            if len(states) == 2 and is_layer:
                states = torch.cat([states[:1], self._disturbed(states[1:])])
            layers, twins = self._wanted
            if layer in layers:
                self._states[layer] = states[0].to("cpu", copy=True)
            if layer in twins:
                self._twins[layer] = states[-1].to("cpu", copy=True)
            if args:
                return (states, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": states}

        return take

    def _disturbed(self, states: Tensor) -> Tensor:
        """States off by a random part of one rounding step, each number by its own."""
        steps = torch.rand(states.shape, generator=self._noise, device=self._device) * 2 - 1
        return (states.float() * (1 + self._rounding * steps)).to(states.dtype)
