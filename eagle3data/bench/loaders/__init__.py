"""The loaders, by name, in the order of the tables."""

from __future__ import annotations

from eagle3data.bench.loaders.base import LoaderPeer
from eagle3data.bench.loaders.data_loaders import MdsDataLoader, ZarrDataLoader
from eagle3data.bench.loaders.trainers import SpecForge, Speculators
from eagle3data.schema.errors import InputError

LOADERS: tuple[LoaderPeer, ...] = (Speculators(), SpecForge(), MdsDataLoader(), ZarrDataLoader())


def chosen_loaders(names: str) -> list[LoaderPeer]:
    """The loaders of a comma-separated list, or of `all` or `none`.

    Raises:
        InputError: a name that is no loader's.
    """
    if names in {"all", "none"}:
        return list(LOADERS) if names == "all" else []
    wanted = [name.strip() for name in names.split(",")]
    known = [peer.name for peer in LOADERS]
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise InputError(
            f"--peers names {', '.join(unknown)}; there are {', '.join(known)}, all and none."
        )
    return [peer for peer in LOADERS if peer.name in wanted]
