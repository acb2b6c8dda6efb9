"""The prompts file: token ids and masks that wait for their states, as Arrow on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from eagle3data.schema.digest import sequence_digest
from eagle3data.schema.errors import InputError
from eagle3data.schema.index import PROMPTS_SCHEMA, check_schema
from eagle3data.schema.manifest import Tokenizer


@dataclass(frozen=True, kw_only=True)
class PromptsFile:
    """An open prompts file.

    Attributes:
        table: rows of `PROMPTS_SCHEMA`, memory-mapped.
        model: the model whose tokenizer and template made the ids, as it was named then.
        tokenizer: digests of that tokenizer and template.
        max_length: no sample is longer, in tokens; None when there was no limit.
    """

    path: Path
    table: pa.Table
    model: str
    tokenizer: Tokenizer
    max_length: int | None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """`[samples]` tokens of each sample."""
        counts = pc.list_value_length(self.table["input_ids"])
        return np.asarray(counts.to_numpy(), dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        """Digest of the samples IN ORDER, their splits and the tokenizer; not of where they lie."""
        columns = (self.table[name].to_pylist() for name in ("sample_id", "split"))
        rows = (f"{sample_id}:{split}" for sample_id, split in zip(*columns, strict=True))
        return sequence_digest([self.tokenizer.model_dump_json(), *rows])


def prompts_metadata(model: str, tokenizer: Tokenizer, max_length: int | None) -> dict[str, str]:
    """What a prompts file says of itself, as the metadata of its Arrow schema."""
    limit = {} if max_length is None else {"max_length": str(max_length)}
    return {"model": model, "tokenizer": tokenizer.model_dump_json(), **limit}


@contextmanager
def prompts_writer(
    path: str | Path, metadata: dict[str, str]
) -> Iterator[pa.ipc.RecordBatchFileWriter]:
    """Write a prompts file piece by piece; it gets its name only when all went well.

    Raises:
        InputError: the folder can't be written to.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            with pa.ipc.new_file(file, PROMPTS_SCHEMA.with_metadata(metadata)) as writer:
                yield writer
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"{target} can't be written: {error}") from error
    finally:
        if temporary.exists():
            temporary.unlink()


def read_prompts(path: str | Path) -> PromptsFile:
    """Open a prompts file; the rows stay on disk until they are used.

    Raises:
        InputError: no such file, not a prompts file, or one without its metadata.
    """
    source = Path(path)
    hint = "make one with `eagle3data prepare`"
    try:
        with pa.memory_map(str(source)) as mapped:
            table = pa.ipc.open_file(mapped).read_all()
    except FileNotFoundError:
        raise InputError(f"{source} does not exist; {hint}.") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{source} is not a prompts file ({error}); {hint}.") from None
    check_schema(table.schema, PROMPTS_SCHEMA, str(source))
    metadata: dict[bytes, Any] = table.schema.metadata or {}
    try:
        tokenizer = Tokenizer.model_validate_json(metadata[b"tokenizer"])
        model = metadata[b"model"].decode()
    except (KeyError, ValidationError):
        raise InputError(
            f"{source} does not say which model and tokenizer made it; {hint}."
        ) from None
    limit = metadata.get(b"max_length")
    return PromptsFile(
        path=source,
        table=table,
        model=model,
        tokenizer=tokenizer,
        max_length=None if limit is None else int(limit),
    )
