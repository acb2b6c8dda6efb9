"""What this package stands on inside vLLM, in the version that is installed.

When one of these fails after an update of vLLM, `engines/vllm_adapter.py`, or the module that the
test names, has to follow. No engine is loaded here; `end_to_end/test_vllm.py` does that.
"""

from __future__ import annotations

import dataclasses
import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    extract_from_kv_cache,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.extract_hidden_states import ExtractHiddenStatesModel, basic_cache
from vllm.v1.engine.core_client import BackgroundResources, SyncMPClient
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.utils import CoreEngineProcManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from eagle3data.extractor.engines import vllm_adapter
from eagle3data.extractor.engines.base import CaptureSettings
from eagle3data.extractor.engines.channel import StateClient
from eagle3data.extractor.engines.vllm import engine_arguments
from eagle3data.extractor.engines.vllm_adapter import Eagle3DataConnector
from eagle3data.extractor.engines.vllm_sender import FinishedRequest, StateSender
from eagle3data.extractor.engines.vllm_settings import PARAMS, TRIED_WITH, Doorway
from eagle3data.schema.errors import EngineError
from eagle3data.schema.manifest import StorageDtype

LAYERS, HIDDEN, PAGE = [1, 2, 3, 4], 8, 4
"""As many layers as tokens in a page: the axes changed places in between versions."""


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def test_this_version_was_tried() -> None:
    oldest, newest = TRIED_WITH
    assert _minor(oldest) <= _minor(vllm.__version__) <= _minor(newest), (
        f"vLLM {vllm.__version__}: run all tests of the vLLM engine, then name it in TRIED_WITH"
    )


OVERRIDDEN = [
    name
    for name, value in vars(Eagle3DataConnector).items()
    if callable(getattr(Eagle3DataConnector, name)) and not name.startswith("_")
    and not isinstance(value, property)
]  # fmt: skip


def _parameters(owner: Any, name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(owner, name)).parameters)


@pytest.mark.parametrize("name", [*OVERRIDDEN, "__init__"])
def test_a_method_is_called_as_it_is_overridden(name: str) -> None:
    base = SupportsHMA if hasattr(SupportsHMA, name) and name != "__init__" else KVConnectorBase_V1
    assert hasattr(base, name), f"vLLM has no {name} any more: who calls ours?"
    theirs, ours = _parameters(base, name), _parameters(Eagle3DataConnector, name)
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in ours.values()):
        return
    assert list(ours) == list(theirs), name


def test_every_method_that_vllm_asks_for_is_there() -> None:
    assert Eagle3DataConnector.__abstractmethods__ == frozenset()


def test_rows_are_taken_from_where_vllm_puts_them(tmp_path: Path) -> None:
    tokens, pages = 10, [5, 2, 6]
    states = torch.randn(tokens, len(LAYERS), HIDDEN, dtype=torch.float16)
    cache = torch.zeros(7, PAGE, PAGE, HIDDEN, dtype=torch.float16)
    slots = torch.tensor([page * PAGE + at for page in pages for at in range(PAGE)])[:tokens]
    basic_cache(states, cache, slots)
    doorway = Doorway.private(str(tmp_path))
    facts = {"layers": LAYERS, "hidden_size": HIDDEN}
    sender = StateSender(cache, PAGE, extract_from_kv_cache, vars(doorway), facts)
    client = StateClient(
        doorway.address,
        bytes.fromhex(doorway.key),
        consumer="me",
        dtype="float16",
        buffer_bytes=1 << 16,
    )
    finished = FinishedRequest(
        req_id="1", request="a", consumer="me", tokens=tokens, tokens_crc32c=7, block_ids=pages
    )
    sender.begin([finished])
    received = client.receive(timeout=60)
    assert received is not None
    assert torch.equal(torch.from_numpy(received.states.copy()), states.transpose(0, 1))
    client.close()


def _group(*names: str) -> KVCacheGroupSpec:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16)
    return KVCacheGroupSpec(layer_names=list(names), kv_cache_spec=spec)


def test_the_cache_group_is_found_by_its_layers_name() -> None:
    def group_of(*groups: KVCacheGroupSpec) -> int:
        config = KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=list(groups))
        return vllm_adapter._cache_group(config)

    assert vllm_adapter._CACHE_LAYER in inspect.getsource(ExtractHiddenStatesModel.__init__)
    ours, other = _group("model.layers.30.cache_only_layers.30"), _group("model.layers.0.attn")
    assert group_of(other, ours) == 1
    assert group_of(other) == 0
    with pytest.raises(EngineError, match="2 cache groups"):
        group_of(other, other)


def test_engine_arguments_are_ones_of_vllm() -> None:
    asked = CaptureSettings(
        layers=LAYERS,
        hidden_size=HIDDEN,
        storage_dtype=StorageDtype.FLOAT16,
        compute_dtype="float32",
        longest=100,
    )
    names = {field.name for field in dataclasses.fields(EngineArgs)}
    assert engine_arguments(asked, Doorway.private("/x"), {}).keys() <= names
    # What `vllm_process` and `generate_vllm` set themselves.
    assert {"kv_cache_memory_bytes", "max_num_batched_tokens", "enable_chunked_prefill"} <= names


def test_params_of_a_request_arrive_at_the_connector() -> None:
    params = vllm.SamplingParams(
        max_tokens=1,
        temperature=0.0,
        logprobs=1,
        detokenize=False,
        extra_args={"kv_transfer_params": {PARAMS: {"request": "1"}}},
    )
    request = Request(
        request_id="1", prompt_token_ids=[1, 2], sampling_params=params, pooling_params=None
    )
    assert request.kv_transfer_params == {PARAMS: {"request": "1"}}
    assert request.prompt_token_ids == [1, 2]


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (LLMEngine, ["add_request", "step", "has_unfinished_requests", "reset_prefix_cache"]),
        (SyncMPClient, ["shutdown"]),
    ],
)
def test_methods_that_the_engine_is_driven_by(owner: type, names: list[str]) -> None:
    for name in names:
        assert callable(getattr(owner, name, None)), name


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (vllm.LLM, "llm_engine"),
        (LLMEngine, "engine_core"),
        (LLMEngine, "vllm_config"),
        (SyncMPClient, "outputs_queue"),
        (CoreEngineProcManager, "processes"),
    ],
)
def test_attributes_that_an_engine_sets(owner: type, name: str) -> None:
    """`vllm` steps the engine by them; `vllm_process` wakes it by them when it was killed."""
    sources = (inspect.getsource(one) for one in inspect.getmro(owner) if one is not object)
    assert any(f"self.{name}" in source for source in sources)


def test_where_the_engines_processes_are_known() -> None:
    names = {field.name for field in dataclasses.fields(BackgroundResources)}
    assert {"engine_manager", "engine_dead"} <= names
