"""Who the target is: the facts of a model folder's config and tokenizer.

The one place in `schema` that opens files, since `Manifest.for_model` names a model by its
folder or hub id.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle3data.schema.digest import bytes_digest, json_digest
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import TargetModel, Tokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
WEIGHTS_INDEX = "model.safetensors.index.json"
_DESCRIPTION_FILES = [
    "config.json",
    "chat_template.jinja",
    "tokenizer_config.json",
    *TOKENIZER_FILES,
]
_NOT_IDENTITY = {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}


def model_folder(
    model: str, revision: str | None = None, patterns: list[str] | None = None
) -> Path:
    """The local folder of a model, given as a folder or as a hub id.

    Args:
        model: a folder, or a Hugging Face id, whose files are then fetched into the hub's cache.
        revision: hub revision; means nothing for a folder.
        patterns: file names to fetch from the hub; by default what describes the model
            without its weights.

    Raises:
        InputError: neither a folder with a config.json nor an id the hub (or its cache) knows.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"{folder} has no config.json; expected a Hugging Face model folder.")
        return folder
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise InputError(f"model folder {model} does not exist.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"{model} is no folder here, and fetching it from the hub needs huggingface_hub: "
            "pip install 'eagle3data[transformers]'."
        ) from None
    try:
        return Path(
            snapshot_download(
                model, revision=revision, allow_patterns=patterns or _DESCRIPTION_FILES
            )
        )
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{model} is no folder here and could not be fetched from the hub: {reason}"
        ) from error


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config; multimodal ones nest it (Kimi-K2.5: `text_config`)."""
    for key in ("text_config", "language_config", "llm_config"):
        nested = config.get(key)
        if isinstance(nested, dict) and "hidden_size" in nested:
            return nested
    return config


def describe_target(model: str, revision: str | None = None) -> tuple[TargetModel, Tokenizer]:
    """Read what the manifest says of the target and its tokenizer.

    Raises:
        InputError: no config, or a config without layers, hidden size or vocabulary.
    """
    folder = model_folder(model, revision)
    config = read_json(folder / "config.json")
    text = text_config(config)
    missing = [
        key
        for key in ("num_hidden_layers", "hidden_size", "vocab_size")
        if not isinstance(text.get(key), int)
    ]
    if missing:
        raise InputError(f"{folder / 'config.json'} does not say {', '.join(missing)}.")
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    identity = {key: value for key, value in config.items() if key not in _NOT_IDENTITY}
    architectures = config.get("architectures") or text.get("architectures") or ["unknown"]
    return (
        TargetModel(
            name=model if not Path(model).is_dir() else Path(model).resolve().name,
            revision=revision,
            config_digest=json_digest(identity),
            architecture=architectures[0],
            model_type=str(config.get("model_type", "unknown")),
            num_hidden_layers=text["num_hidden_layers"],
            hidden_size=text["hidden_size"],
            vocab_size=text["vocab_size"],
            quantization=quantization.get("quant_method"),
        ),
        describe_tokenizer(folder),
    )


def target_differences(
    made: TargetModel, made_tokenizer: Tokenizer, model: str, revision: str | None = None
) -> list[str]:
    """How a model differs from the one that states were made with; empty where it does not.

    Args:
        made: the target of the states.
        made_tokenizer: its tokenizer.
        model: folder or hub id of the model to compare.
        revision: hub revision.

    Raises:
        InputError: no such model.
    """
    given, tokenizer = describe_target(model, revision)
    found = [
        f"{name} was {getattr(made, name)}, is {getattr(given, name)}"
        for name in ("architecture", "num_hidden_layers", "hidden_size", "vocab_size")
        if getattr(made, name) != getattr(given, name)
    ]
    if not found and made.config_digest != given.config_digest:
        found.append("its config.json is another")
    if None not in (made.revision, given.revision) and made.revision != given.revision:
        found.append(f"revision was {made.revision}, is {given.revision}")
    if made_tokenizer.digest is not None and made_tokenizer.digest != tokenizer.digest:
        found.append("its tokenizer is another")
    return found


def config_digest(model: str, revision: str | None = None) -> str | None:
    """`TargetModel.config_digest` of a model; None for one without a config to read."""
    try:
        return describe_target(model, revision)[0].config_digest
    except InputError:
        return None


def checkpoint_dtype(model: str, revision: str | None = None) -> str:
    """The dtype that a checkpoint's config names (`bfloat16`, ...); float32 where it names none."""
    config = read_json(model_folder(model, revision) / "config.json")
    for section in (config, text_config(config)):
        named = section.get("dtype") or section.get("torch_dtype")
        if isinstance(named, str) and named != "auto":
            return named
    return "float32"


def checkpoint_bytes(model: str, revision: str | None = None) -> int | None:
    """Bytes of a model's weights, which loading it reads; None where that isn't known.

    Of a model on the hub only the index of its weights is fetched.
    """
    folder = model_folder(model, revision, ["config.json", WEIGHTS_INDEX])
    if (folder / WEIGHTS_INDEX).is_file():
        total = read_json(folder / WEIGHTS_INDEX).get("metadata", {}).get("total_size")
        if isinstance(total, int):
            return total
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None


def describe_tokenizer(folder: Path) -> Tokenizer:
    """Digests of a model folder's tokenizer and chat template; None where there is none."""
    digest = next(
        (
            bytes_digest((folder / f).read_bytes())
            for f in TOKENIZER_FILES
            if (folder / f).is_file()
        ),
        None,
    )
    template = None
    jinja, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if jinja.is_file():
        template = jinja.read_text()
    elif settings.is_file():
        template = read_json(settings).get("chat_template")
    return Tokenizer(
        digest=digest, chat_template_digest=json_digest(template) if template else None
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: no such file, or something else in it.
    """
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {type(value).__name__}, expected an object.")
    return value
