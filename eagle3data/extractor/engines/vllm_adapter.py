"""Everything that depends on vLLM's internals: the connector that takes the states out of it.

vLLM's `extract_hidden_states` method keeps the asked layers' states in a cache layer of its own,
paged like the KV cache. This connector takes a finished request's pages and copies them, once and
in the storage dtype, into the memory of the client that asked (`channel`). It runs in vLLM's
processes, so it is imported by name there: `capture_arguments` says how.

What of vLLM it stands on is held by `tests/extractor/test_vllm_adapter.py`, for the versions that
`vllm_settings.TRIED_WITH` names.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank
from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer
from vllm.v1.request import RequestStatus

from eagle3data.extractor.engines.vllm_sender import FinishedRequest, StateSender
from eagle3data.extractor.engines.vllm_settings import INSTANCE, PARAMS, SETTINGS
from eagle3data.extractor.processes import has_ended
from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.errors import EngineError
from eagle3data.schema.target import config_digest

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_CACHE_LAYER = "cache_only_layers"
_SET_PARENT_DEATH_SIGNAL = 1
_RUN_TO_THE_END = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


@dataclass
class Step(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler tells the worker in one step."""

    finished: list[FinishedRequest] = field(default_factory=list)
    is_idle: bool = False


class Eagle3DataConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Hands each finished request's states to the client that asked for them.

    A request takes part when its `kv_transfer_params` hold `PARAMS`; others pass untouched. Its
    pages are kept until they were copied, so a client that is slow slows the engine and nothing
    is lost or piled up.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """As vLLM calls it, once in the scheduler's and once in each worker's process."""
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._config = vllm_config
        self._settings = self._kv_transfer_config.get_from_extra_config(SETTINGS, None)
        if not isinstance(self._settings, dict):
            raise EngineError(
                f"kv_connector_extra_config holds no '{SETTINGS}': take the arguments of "
                "`eagle3data serve-args`."
            )
        _die_with(self._settings.get("owner"))
        self._group = _cache_group(kv_cache_config)
        self._block_size = kv_cache_config.kv_cache_groups[self._group].kv_cache_spec.block_size
        self._finished: list[FinishedRequest] = []
        self._sender: StateSender | None = None

    # The scheduler's side.

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep a finished request's pages until they are copied."""
        blocks = block_ids[self._group] if self._group < len(block_ids) else []
        return self.request_finished(request, blocks)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, for engines with one cache group."""
        params = (request.kv_transfer_params or {}).get(PARAMS)
        if not isinstance(params, dict):
            return False, None
        if "consumer" not in params:
            return False, {PARAMS: self._description}
        tokens = request.prompt_token_ids
        if request.status not in _RUN_TO_THE_END or not tokens or not block_ids:
            return False, None
        self._finished.append(
            FinishedRequest(
                req_id=request.request_id,
                request=str(params["request"]),
                consumer=str(params["consumer"]),
                tokens=len(tokens),
                tokens_crc32c=tokens_crc32c(np.asarray(tokens, dtype=np.int32)),
                block_ids=list(block_ids),
            )
        )
        return True, {PARAMS: {INSTANCE: self._description[INSTANCE]}}

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Pass on what has finished since the last step."""
        step = Step(self._finished, scheduler_output.total_num_scheduled_tokens == 0)
        self._finished = []
        return step

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Nothing is ever loaded."""
        del request, num_computed_tokens
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Nothing is ever loaded."""

    def get_finished_count(self) -> int:
        """One worker of all reports that a request's states were copied."""
        return 1

    @cached_property
    def _description(self) -> dict[str, Any]:
        """Where a client of this server finds the states, and which of all servers it is."""
        doorway = {name: self._settings[name] for name in ("address", "key")}
        return {**doorway, INSTANCE: secrets.token_hex(8), **_facts(self._config)}

    # The workers' side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Find the hidden states' cache; one worker opens the channel to the clients."""
        layers = get_layers_from_vllm_config(self._config, CacheOnlyAttentionLayer, list(kv_caches))
        if not (layers and get_pp_group().is_last_rank and get_tensor_model_parallel_rank() == 0):
            return
        cache = kv_caches[next(iter(layers))]
        self._sender = StateSender(
            cache, self._block_size, extract_from_kv_cache, self._settings, _facts(self._config)
        )

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Begin to copy what has finished; report what was copied, so that its pages are freed."""
        del finished_req_ids
        if self._sender is None:
            return None, None
        step = self._get_connector_metadata()
        if isinstance(step, Step):
            self._sender.begin(step.finished)
            if step.is_idle:
                self._sender.wait_for_copy()
        return self._sender.copied() or None, None

    def start_load_kv(self, *_: Any, **__: Any) -> None:
        """Called as a step begins; nothing is ever loaded."""
        if self._sender is not None:
            self._sender.step_begins()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is ever loaded."""

    def save_kv_layer(self, *_: Any, **__: Any) -> None:
        """The states are taken when the request has finished."""

    def wait_for_save(self) -> None:
        """Nothing is saved within a step."""

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """The one in which `extract_from_kv_cache` finds its rows; its name changed with time."""
        layout = ExampleHiddenStatesConnector.get_required_kvcache_layout(vllm_config)
        return None if layout is None else str(layout)


def _cache_group(kv_cache_config: KVCacheConfig) -> int:
    """The cache group of the hidden states, told by its layer's name.

    vLLM's own connector goes by the group's kind, which is lost where the target's attention
    (MLA) shares a group with it.
    """
    groups = kv_cache_config.kv_cache_groups
    for number, group in enumerate(groups):
        if any(_CACHE_LAYER in name for name in group.layer_names):
            return number
    if len(groups) == 1:
        return 0
    raise EngineError(
        f"vLLM made {len(groups)} cache groups for this model and none of them names the hidden "
        "states' layer, so their place is not known. Use --engine transformers for this model, "
        "and please report it."
    )


def _facts(config: VllmConfig) -> dict[str, Any]:
    """What a client has to know of this engine."""
    from vllm import __version__

    draft = config.speculative_config.draft_model_config.hf_config
    return {
        "layers": list(draft.eagle_aux_hidden_state_layer_ids),
        "hidden_size": config.model_config.get_hidden_size(),
        "compute_dtype": str(config.model_config.dtype).removeprefix("torch."),
        "model": config.model_config.model,
        "config_digest": config_digest(config.model_config.model, config.model_config.revision),
        "vllm": __version__,
    }


def _die_with(owner: int | None) -> None:
    """End this process when the extractor that started it ends, however that happens."""
    if owner is None or owner == os.getpid():
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # It may have ended before, while the model was loaded.
    if os.getppid() != parent or _is_gone(owner):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_gone(pid: int) -> bool:
    try:
        return has_ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True
