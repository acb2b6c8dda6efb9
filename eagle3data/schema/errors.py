"""Every error that a user can meet: what was found, where, what was expected, what to do."""

from __future__ import annotations

from typing import Any, Self


class Eagle3DataError(Exception):
    """Base of all errors raised on purpose; the command line prints it as one paragraph.

    All of them can be pickled, so that one that was raised on another machine arrives as it was.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._again, (self.args, dict(self.__dict__))

    @classmethod
    def _again(cls, args: tuple[Any, ...], attributes: dict[str, Any]) -> Self:
        # Past `__init__`, whose arguments are not what `args` holds.
        error = cls.__new__(cls, *args)
        error.__dict__.update(attributes)
        return error


class InputError(Eagle3DataError):
    """An argument, a source file or a model folder that can't be used."""


class ManifestError(Eagle3DataError):
    """A manifest that is missing, malformed, of a newer major version, or not of this model."""


class LayerError(InputError):
    """Layer ids that the target doesn't have, or whose numbering is not known."""


class SampleError(Eagle3DataError):
    """One sample that can't be written: its arrays disagree, or its states are not finite.

    `kind` is the code of the fault as `validate` would report it (`length_mismatch`,
    `nonfinite`, `saturated`, `all_zero`, ...), so that a ledger row and a finding compare.
    """

    def __init__(self, kind: str, sample_id: str, message: str) -> None:
        super().__init__(f"sample {sample_id}: {message}")
        self.kind = kind
        self.sample_id = sample_id


class CorruptionError(Eagle3DataError):
    """Stored bytes that are not what was written: a checksum, a size or an object is wrong."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        url: str,
        array: str | None = None,
        shard: int | None = None,
        chunk: int | None = None,
        sample_id: str | None = None,
    ) -> None:
        self.kind = kind
        self.url = url
        self.array = array
        self.shard = shard
        self.chunk = chunk
        self.sample_id = sample_id
        super().__init__(message)

    def __str__(self) -> str:
        places = [
            ("data set", self.url),
            ("array", self.array),
            ("shard", self.shard),
            ("chunk", self.chunk),
            ("sample", self.sample_id),
        ]
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        return f"{self.kind}: {self.args[0]} ({where})"


class MismatchError(Eagle3DataError):
    """A resume (of an extraction, a loader, a training run) against something that differs."""


class AlreadyExistsError(Eagle3DataError):
    """An object that should have been created exclusively was already there."""


class LostClaimError(Eagle3DataError):
    """Another process took over what this one was working on; nothing of it was committed."""


class StalledError(Eagle3DataError):
    """A set that is followed while it is extracted: nothing was committed for too long."""


class EngineError(Eagle3DataError):
    """The engine that runs the target could not start, or stopped in the middle of its work."""


class ClusterError(Eagle3DataError):
    """Machines that were to work on something are not there, or were lost one after the other."""


class SpaceError(Eagle3DataError):
    """Not enough room for what would be written."""
