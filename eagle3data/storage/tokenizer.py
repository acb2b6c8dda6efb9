"""A target's tokenizer, loaded with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3data.schema.errors import InputError
from eagle3data.schema.target import describe_tokenizer, model_folder


def load_tokenizer(
    model: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> Any:
    """The tokenizer of a Hugging Face folder or id.

    Raises:
        InputError: there is no tokenizer, or transformers can't load it.
    """
    folder = model_folder(model, revision)
    if describe_tokenizer(folder).digest is None:
        raise InputError(
            f"{model} has no tokenizer (no tokenizer.json, tokenizer.model, tiktoken.model or "
            "vocab.json); use the complete model folder."
        )
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InputError(
            "chat templates and tokenizers need transformers: "
            "pip install 'eagle3data[transformers]'."
        ) from None
    name = str(folder) if Path(model).expanduser().is_dir() else model
    try:
        return AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise InputError(f"the tokenizer of {model} can't be loaded: {error}") from error
