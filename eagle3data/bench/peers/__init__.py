"""The peers, by name, in the order of the tables."""

from __future__ import annotations

from eagle3data.bench.peers.base import Peer
from eagle3data.bench.peers.containers import Hdf5, Lance, Mds
from eagle3data.bench.peers.sample_files import BigShard, Safetensors, TorchSave
from eagle3data.bench.peers.zarr_arrays import TensorStore, ZarrPython, Zarrs
from eagle3data.schema.errors import InputError

PEERS: tuple[Peer, ...] = (
    Safetensors(),
    TorchSave(),
    BigShard(),
    ZarrPython(),
    Zarrs(),
    TensorStore(),
    Hdf5(),
    Mds(),
    Lance(),
)
BASELINE = Safetensors.name
"""What ratios are given against: the fastest of the peers' ways, unchecked, one thread."""


def chosen(names: str) -> list[Peer]:
    """The peers of a comma-separated list, or of `all` or `none`.

    Raises:
        InputError: a name that is no peer's.
    """
    if names in {"all", "none"}:
        return list(PEERS) if names == "all" else []
    wanted = [name.strip() for name in names.split(",")]
    known = {peer.name: peer for peer in PEERS}
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise InputError(
            f"--peers names {', '.join(unknown)}; there are {', '.join(known)}, all and none."
        )
    return [peer for peer in PEERS if peer.name in wanted]
