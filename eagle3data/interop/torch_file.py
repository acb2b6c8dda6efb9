"""Files of `torch.save`, read as plain tensors: a pickle with code in it is refused, never run.

`torch.load` with `weights_only` knows no more than tensors and plain containers. Files are mapped,
so that only what is read comes from the disk; a gzip has to be unpacked whole, in memory.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy.typing as npt

from eagle3data.interop import refusals
from eagle3data.interop.source_files import unreadable
from eagle3data.schema.sample import as_numpy

_ZIP = b"PK\x03\x04"
_TORN = (
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
)
"""What torch raises of a zip that is torn or not its own."""


def load(path: Path, place: str) -> Any:
    """What `torch.save` wrote, its tensors on the CPU and mapped where the file is no gzip.

    Raises:
        SampleError: missing, torn, not of `torch.save` since 1.6, or more than plain tensors.
    """
    import torch

    source = _unpacked(path, place) if path.suffix == ".gz" else path
    _check_zip(source, place)
    try:
        return torch.load(
            source, map_location="cpu", weights_only=True, mmap=isinstance(source, Path)
        )
    except pickle.UnpicklingError as error:
        raise refusals.refusal(
            refusals.UNSAFE,
            place,
            f"its pickle is torn or asks for more than plain tensors: {_said(error)}",
            "tensors, numbers and strings",
            "Nothing of it was run. If you trust it, load and save it yourself as plain tensors.",
        ) from None
    except OSError as error:
        raise unreadable(error, place) from None
    except (*_TORN, EOFError) as error:
        raise refusals.damaged(
            place, f"torch can't read it: {_said(error)}", "a whole file of torch.save"
        ) from None


def tensors(path: Path, place: str, needed: tuple[str, ...]) -> dict[str, Any]:
    """A file that holds one dict of tensors, by name.

    Raises:
        SampleError: as `load`, or another thing than a dict with `needed` in it.
    """
    return tensors_in(load(path, place), place, needed)


def tensors_in(loaded: Any, place: str, needed: tuple[str, ...]) -> dict[str, Any]:
    """`loaded`, which has to be a dict with `needed` tensors.

    Raises:
        SampleError: it is not.
    """
    found = sorted(map(str, loaded)) if isinstance(loaded, dict) else [type(loaded).__name__]
    if not isinstance(loaded, dict) or any(loaded.get(name) is None for name in needed):
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"it holds {', '.join(found) or 'nothing'}",
            f"a dict with {', '.join(needed)}",
            "The file is of another layout; name it with --format.",
        )
    return loaded


def values(tensor: Any, place: str, name: str) -> npt.NDArray[Any]:
    """A tensor's values without a copy; bfloat16 by its bits.

    Raises:
        SampleError: it is no dense tensor that numpy can hold.
    """
    try:
        return as_numpy(tensor)
    except (TypeError, RuntimeError, ValueError):
        raise refusals.refusal(
            refusals.LAYOUT,
            place,
            f"{name} is {getattr(tensor, 'dtype', type(tensor).__name__)}",
            "a dense tensor",
            "Write it as bfloat16, float16 or float32.",
        ) from None


def _check_zip(source: Path | io.BytesIO, place: str) -> None:
    # torch would take another file for a pickle of its earliest versions.
    try:
        head = source.getvalue()[:4] if isinstance(source, io.BytesIO) else _head(source)
    except OSError as error:
        raise unreadable(error, place) from None
    if head != _ZIP:
        raise refusals.damaged(
            place,
            f"it begins with {head!r}",
            "a zip, as torch.save has written since version 1.6 (an older file has to be loaded "
            "and saved again)",
        )


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _unpacked(path: Path, place: str) -> io.BytesIO:
    try:
        with gzip.open(path) as packed:
            return io.BytesIO(packed.read())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise refusals.damaged(place, f"the gzip is torn: {error}", "a whole gzip") from None
    except OSError as error:
        raise unreadable(error, place) from None


def _said(error: Exception) -> str:
    # torch's own advice is to load the file without the check; it is cut off.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "GLOBAL" in line or "Unsupported" in line), None)
    return (told or (lines[0] if lines else type(error).__name__))[:200]
