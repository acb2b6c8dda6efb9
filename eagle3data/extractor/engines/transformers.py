"""The `transformers` engine: any causal language model of Hugging Face, on one device.

States are taken by hooks at the residual stream itself: before decoder layer `k`, and before
the final norm for layer N. (`output_hidden_states` would keep every layer, and its last one
is after the norm.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn

from eagle3data.extractor.engines.base import Captured, Request
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import StorageDtype
from eagle3data.schema.target import describe_target, model_folder

DEFAULT_BATCH_TOKENS = 2048
_FINAL_NORMS = ("norm", "final_layernorm", "ln_f", "final_norm")
_LAYER_LISTS = ("layers", "h", "blocks")


class TransformersEngine:
    """A target loaded with transformers.

    Attributes:
        name: `transformers`.
        version: of transformers and torch.
        compute_dtype: dtype the model runs in.
        switches: settings that change the states.
    """

    name = "transformers"

    def __init__(
        self,
        model: str,
        *,
        layers: Sequence[int],
        storage_dtype: StorageDtype,
        compute_dtype: str,
        revision: str | None = None,
        trust_remote_code: bool = False,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
    ) -> None:
        """Load the model.

        Args:
            model: Hugging Face folder or id.
            layers: canonical ids to capture, ascending.
            storage_dtype: what the states are cast to.
            compute_dtype: dtype to run in: `bfloat16`, `float16` or `float32`.
            batch_tokens: padded tokens of one forward pass.

        Raises:
            InputError: weights that can't be loaded, or a model whose layers are not found.
        """
        self._layers = list(layers)
        self._storage = {
            StorageDtype.FLOAT16: torch.float16,
            StorageDtype.BFLOAT16: torch.bfloat16,
        }[storage_dtype]
        self._batch_tokens = batch_tokens
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = load_model(
            model, compute_dtype=compute_dtype, revision=revision, trust=trust_remote_code
        ).to(self._device)
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.compute_dtype = str(self._model.dtype).removeprefix("torch.")
        self.switches = {"attention": str(self._model.config._attn_implementation)}
        self._taken: dict[int, torch.Tensor] = {}
        self._hook(self._model, describe_target(model, revision)[0].num_hidden_layers)

    def _hook(self, model: nn.Module, num_hidden_layers: int) -> None:
        layers, norm = find_layers(model, num_hidden_layers)
        for layer in self._layers:
            module = layers[layer] if layer < len(layers) else norm
            module.register_forward_pre_hook(self._taking(layer), with_kwargs=True)

    def _taking(self, layer: int) -> Callable[..., None]:
        def take(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._taken[layer] = args[0] if args else kwargs["hidden_states"]

        return take

    def capture(self, groups: Iterable[Sequence[Request] | None]) -> Iterator[Captured]:
        """Run each group in batches of similar length, longest first.

        The batches are a function of the group alone, so a shard that is done again is done in
        the same batches.
        """
        for group in groups:
            for batch in batches_by_length(group or (), self._batch_tokens):
                yield from self._run(batch)

    def close(self) -> None:
        """Nothing was started: the model goes with its last reference."""

    @torch.inference_mode()
    def _run(self, batch: Sequence[Request]) -> Iterator[Captured]:
        lengths = [len(request.input_ids) for request in batch]
        longest = max(lengths)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        attention = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, request in enumerate(batch):
            # Padding on the right: under a causal mask no token sees it.
            ids[row, : lengths[row]] = torch.tensor(request.input_ids)
            attention[row, : lengths[row]] = 1
        last = sorted({length - 1 for length in lengths})
        output = self._model(
            input_ids=ids.to(self._device),
            attention_mask=attention.to(self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(last, device=self._device),
        )
        for row, request in enumerate(batch):
            logits = output.logits[row, last.index(lengths[row] - 1)].float()
            token = int(logits.argmax())
            yield Captured(
                request=request,
                hidden_states={
                    layer: self._stored(self._taken[layer][row, : lengths[row]])
                    for layer in self._layers
                },
                witness_token=token,
                witness_logprob=float(logits[token] - logits.logsumexp(0)),
            )
        self._taken.clear()

    def _stored(self, states: torch.Tensor) -> npt.NDArray[Any]:
        stored = states.to(self._storage).cpu().contiguous()
        if self._storage is torch.bfloat16:
            return np.asarray(stored.view(torch.uint16).numpy())
        return np.asarray(stored.numpy())


def load_model(model: str, *, compute_dtype: str, revision: str | None, trust: bool) -> Any:
    """Load a causal language model for inference.

    Raises:
        InputError: not a model folder or id, or weights that transformers can't load.
    """
    folder = model_folder(model, revision, patterns=["*.json", "*.safetensors", "*.jinja", "*.py"])
    transformers.utils.logging.disable_progress_bar()
    try:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, compute_dtype), trust_remote_code=trust
        )
    except (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        SafetensorError,
        StrictDataclassError,
    ) as error:
        raise InputError(
            f"transformers {transformers.__version__} can't load the model in {folder}: {error}"
        ) from error
    return loaded.eval()


def find_layers(model: nn.Module, num_hidden_layers: int) -> tuple[nn.ModuleList, nn.Module]:
    """The decoder layers and the final norm of a causal language model.

    A multimodal model has a vision tower of layers too; the language model's are told by
    their number.

    Raises:
        InputError: the model is not built of a list of layers and one norm after it.
    """
    for module in model.modules():
        layers = next((getattr(module, name, None) for name in _LAYER_LISTS), None)
        norm = next((getattr(module, name) for name in _FINAL_NORMS if hasattr(module, name)), None)
        if not (isinstance(layers, nn.ModuleList) and isinstance(norm, nn.Module)):
            continue
        if len(layers) == num_hidden_layers:
            return layers, norm
    raise InputError(
        f"{type(model).__name__}: no list of {num_hidden_layers} decoder layers with a final norm "
        "beside it was found, so its residual stream can't be taken. Please report this model."
    )


def batches_by_length(requests: Sequence[Request], batch_tokens: int) -> Iterator[list[Request]]:
    """Cut requests into batches whose padded size stays within `batch_tokens`, longest first."""
    ordered = sorted(requests, key=lambda request: (-len(request.input_ids), request.sample_id))
    batch: list[Request] = []
    for request in ordered:
        if batch and (len(batch) + 1) * len(batch[0].input_ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch
