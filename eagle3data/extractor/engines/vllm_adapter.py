"""Everything that depends on vLLM's internals: the connector that takes the states out of it.

vLLM's `extract_hidden_states` method keeps the asked layers' states in a cache layer of its own,
paged like the KV cache. This connector takes a finished request's pages and copies them, once and
in the storage dtype, into the memory of the client that asked (`channel`). It runs in vLLM's
processes, so it is imported by name there: `connector_config` says how.

Tried with vLLM 0.26 (CUDA) and 0.32 (CPU). What of vLLM it stands on is held by
`tests/extractor/test_vllm_adapter.py`.
"""

from __future__ import annotations

import ctypes
import os
import queue
import secrets
import signal
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
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

from eagle3data.extractor.engines.channel import Consumer, Region, SampleLayout, StateServer
from eagle3data.extractor.engines.vllm_settings import INSTANCE, PARAMS, SETTINGS
from eagle3data.schema.digest import tokens_crc32c
from eagle3data.schema.errors import EngineError
from eagle3data.schema.target import config_digest

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_CACHE_LAYER = "cache_only_layers"
_PIECE_BYTES = 256 << 20
"""States gathered on the GPU at once: what vLLM leaves free there is not much."""
_IDLE_SECONDS = 0.002
_SET_PARENT_DEATH_SIGNAL = 1
_RUN_TO_THE_END = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
_STORAGE = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class FinishedRequest:
    """A request whose states lie complete in the cache.

    Attributes:
        req_id: vLLM's own.
        request: the client's name of it.
        consumer: the client.
        tokens: T.
        tokens_crc32c: of the token ids that were run.
        block_ids: pages of the hidden-state cache that hold its rows, in order.
    """

    req_id: str
    request: str
    consumer: str
    tokens: int
    tokens_crc32c: int
    block_ids: list[int]


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
        self._sender: _Sender | None = None

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
        self._sender = _Sender(cache, self._block_size, self._settings, _facts(self._config))

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
        """Nothing is ever loaded."""

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


class _Sender:
    """Copies finished requests' states to their clients.

    The copies are issued in the engine's own thread, where they cost microseconds: another one
    would wait for Python's lock at each of its calls for as long as the engine has something to
    do. Only what waits (for the device, for a socket) is done in a thread, one a client.
    """

    def __init__(
        self,
        cache: torch.Tensor,
        block_size: int,
        settings: dict[str, Any],
        facts: dict[str, Any],
    ) -> None:
        self._pages = _Pages(cache, block_size, len(facts["layers"]), int(facts["hidden_size"]))
        self._lanes: dict[str, _Lane] = {}
        self._changed = threading.Condition()
        self._open = 0
        self._copied: set[str] = set()
        self._server = StateServer(
            settings["address"], bytes.fromhex(settings["key"]), facts, self._welcome, self._part
        )

    def begin(self, finished: list[FinishedRequest]) -> None:
        """Issue the copies of what has finished, as far as there is room for them."""
        with self._changed:
            self._open += len(finished)
            lanes = dict(self._lanes)
        for request in finished:
            lane = lanes.get(request.consumer)
            if lane is None:
                self._done(request)  # its client has gone
            else:
                lane.waiting.append(request)
        for lane in lanes.values():
            lane.advance()

    def wait_for_copy(self) -> None:
        """Let an engine that has nothing else to do not turn in circles."""
        with self._changed:
            if self._open and not self._copied:
                self._changed.wait(_IDLE_SECONDS)

    def copied(self) -> set[str]:
        """Requests whose pages are not needed any more, each told once."""
        with self._changed:
            copied, self._copied = self._copied, set()
        return copied

    def _welcome(self, consumer: Consumer) -> None:
        lane = _Lane(consumer, self._pages, self._done)
        with self._changed:
            self._lanes[consumer.name] = lane

    def _part(self, consumer: Consumer) -> None:
        """What is asked for from now on is nobody's; what was asked before is let go."""
        with self._changed:
            lane = self._lanes.pop(consumer.name)
        lane.end()

    def _done(self, request: FinishedRequest) -> None:
        with self._changed:
            self._open -= 1
            self._copied.add(request.req_id)
            self._changed.notify_all()


class _Lane:
    """One client's share of the work.

    Attributes:
        waiting: requests for whose states there was no room yet; the engine's thread's own.
    """

    def __init__(
        self, consumer: Consumer, pages: _Pages, done: Callable[[FinishedRequest], None]
    ) -> None:
        self.waiting: deque[FinishedRequest] = deque()
        self._consumer, self._pages, self._done = consumer, pages, done
        self._memory = torch.frombuffer(consumer.memory, dtype=torch.uint8)
        self._dtype = _STORAGE[consumer.dtype]
        self._stream = pages.stream()
        if self._stream is not None:
            _pin(self._memory, pages.device)
        self._issued: queue.SimpleQueue[_Issued | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        threading.Thread(target=self._deliver, name="eagle3data-states", daemon=True).start()

    def advance(self) -> None:
        """Issue copies, oldest first, until the client's memory is full."""
        with self._lock:
            while self.waiting:
                request = self.waiting[0]
                if self._consumer.is_gone:
                    self._done(self.waiting.popleft())
                    continue
                try:
                    region = self._consumer.reserve(self._pages.layout(request).nbytes)
                    if region is None:
                        return
                    event = self._pages.copy(
                        request, region, self._memory, self._dtype, self._stream
                    )
                    self._issued.put(_Issued(request, region, event))
                except (RuntimeError, EngineError) as error:
                    self._consumer.fail(f"request {request.request}: {error}")
                    self._done(request)
                self.waiting.popleft()

    def end(self) -> None:
        """The client has gone: nothing of it is kept."""
        self.advance()
        self._issued.put(None)

    def _deliver(self) -> None:
        """Tell the client of each copy that the device has made, until the client has gone."""
        while (issued := self._issued.get()) is not None:
            if issued.event is not None:
                issued.event.synchronize()
            header = {
                "request": issued.request.request,
                "tokens": issued.request.tokens,
                "tokens_crc32c": issued.request.tokens_crc32c,
            }
            self._consumer.deliver(issued.region, header)
            self._done(issued.request)
        if self._stream is not None:
            _unpin(self._memory)


@dataclass(frozen=True)
class _Issued:
    request: FinishedRequest
    region: Region
    event: torch.cuda.Event | None


@dataclass(frozen=True)
class _Pages:
    """The hidden states' cache, and how a request's rows are taken out of it."""

    cache: torch.Tensor
    block_size: int
    layers: int
    hidden_size: int

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.cache.device

    def stream(self) -> torch.cuda.Stream | None:
        """A stream beside the engine's own; None without CUDA."""
        if not self.cache.is_cuda:
            return None
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def layout(self, request: FinishedRequest) -> SampleLayout:
        """How a request's sample lies in a client's memory."""
        return SampleLayout(self.layers, request.tokens, self.hidden_size)

    def copy(
        self,
        request: FinishedRequest,
        region: Region,
        memory: torch.Tensor,
        dtype: torch.dtype,
        stream: torch.cuda.Stream | None,
    ) -> torch.cuda.Event | None:
        """Begin to copy; the event is reached when it is done, at once without CUDA."""
        layout = self.layout(request)
        piece = memory[region.offset : region.offset + layout.nbytes]
        states = piece[: layout.values * 2].view(dtype).view(layout.shape)
        rows = piece[layout.rows_offset :].view(torch.float32).view(2, *layout.shape[:2])
        target = _Target(states, rows)
        if stream is None:
            self._gather(request, target)
            return None
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self._gather(request, target)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return event

    def _gather(self, request: FinishedRequest, target: _Target) -> None:
        """Take the rows from their pages, piece by piece, each layer's to its place."""
        row_bytes = self.layers * self.hidden_size * self.cache.element_size()
        piece = max(self.block_size, _PIECE_BYTES // row_bytes)
        blocks = torch.tensor(request.block_ids, dtype=torch.long)
        offsets = torch.arange(self.block_size, dtype=torch.long)
        slots = (blocks[:, None] * self.block_size + offsets).flatten()[: request.tokens]
        if len(slots) < request.tokens:
            raise EngineError(f"{len(slots)} rows of states for {request.tokens} tokens")
        slots = slots.to(self.device, non_blocking=True)
        for begin in range(0, request.tokens, piece):
            some = slots[begin : begin + piece]
            rows = extract_from_kv_cache(self.cache, some, len(some))
            layers = rows.transpose(0, 1).to(target.states.dtype).contiguous()
            place = slice(begin, begin + len(some))
            for order, of_rows in zip((2, torch.inf), target.rows, strict=True):
                found = torch.linalg.vector_norm(layers, order, dim=-1, dtype=torch.float32)
                _put(found, of_rows[:, place])
            _put(layers, target.states[:, place])


def _put(layers: torch.Tensor, place: torch.Tensor) -> None:
    """Copy to the host, in as few pieces as lie together there: strided ones go by a detour."""
    if place.is_contiguous():
        place.copy_(layers, non_blocking=True)
        return
    for one, its_place in zip(layers, place, strict=True):
        its_place.copy_(one, non_blocking=True)


@dataclass(frozen=True)
class _Target:
    """Where a sample goes: `[L, T, H]` states, and `[2, L, T]` norms and largest magnitudes."""

    states: torch.Tensor
    rows: torch.Tensor


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


def _pin(memory: torch.Tensor, device: torch.device) -> None:
    """Make the GPU write into it at full speed, without a stop at a buffer of the driver's."""
    with torch.cuda.device(device):
        error = torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]
            memory.data_ptr(), memory.numel() * memory.element_size(), 0
        )
    if int(error) != 0:
        raise EngineError(f"the buffer of states can't be pinned (CUDA error {int(error)})")


def _unpin(memory: torch.Tensor) -> None:
    """Undo `_pin`, without which the pages of a client that has gone would stay."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]


def _die_with(owner: int | None) -> None:
    """End this process when the extractor that started it ends, however that happens."""
    if owner is None or owner == os.getpid():
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
