"""Reading ahead: the batches that come next are filled while the one before is used."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from eagle3data.readers.batch import Batch
from eagle3data.readers.device_copies import Delivery, Device, DeviceDelivery, HostDelivery
from eagle3data.readers.filling import Filling
from eagle3data.readers.host_buffers import HostBuffers
from eagle3data.readers.reading import Reading
from eagle3data.readers.sample_cache import CacheCounts
from eagle3data.schema.errors import CorruptionError
from eagle3data.schema.manifest import StorageDtype

DEFAULT_PREFETCH_BYTES = 2 << 30
_LEAST_AHEAD = 2
"""Batches on their way, whatever their size: one that is waited for, and the one after it."""
_MOST_AHEAD = 64
"""More of them, where they are small, only cost their bookkeeping."""


@dataclass(kw_only=True)
class FeedMetrics:
    """How well a loader feeds, since its epoch began; a moment's copy is `dataclasses.replace`.

    Attributes:
        batches: handed over.
        tokens: of their samples.
        bytes: of their samples' states.
        seconds: since the first batch was asked for.
        waited: of those, seconds that the consumer waited here.
        ready: batches that were filled and not asked for yet when one was last asked for.
        stalled: of `seconds`, those that the device's stream stood still for a copy to it.
        cache: what the data set's local cache has done, also for batches read ahead; None
            without one.
    """

    batches: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    ready: int = 0
    stalled: float = 0.0
    cache: CacheCounts | None = None
    _began: float | None = field(default=None, repr=False)

    @property
    def wait_share(self) -> float:
        """Share of the time that the consumer, or its device, waited for data; at most."""
        return (self.waited + self.stalled) / self.seconds if self.seconds else 0.0

    @property
    def gigabytes_per_second(self) -> float:
        """States delivered, in 1e9 bytes a second of the epoch so far."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens delivered a second of the epoch so far."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        line = (
            f"{self.gigabytes_per_second:.2f} GB/s, {self.tokens_per_second:,.0f} tokens/s, "
            f"{self.wait_share:.1%} waiting, {self.ready} batches ready"
        )
        if self.cache is not None:
            line += f", {self.cache.hit_share:.1%} of the bytes from the cache"
        return line

    def begin(self) -> float:
        """Note that a batch is asked for; the time."""
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        return now

    def add(self, batch: Batch, waited: float, ready: int, stalled: float) -> None:
        """Note that it is handed over.

        Args:
            batch: the batch.
            waited: seconds that the consumer waited here for data.
            ready: as the attribute.
            stalled: as the attribute.
        """
        now = time.perf_counter()
        self.batches += 1
        self.tokens += batch.tokens
        self.bytes += batch.tokens * batch.hidden_states[:, 0].nbytes
        self.waited += waited
        self.seconds = now - (now if self._began is None else self._began)
        self.ready, self.stalled = ready, stalled


def read_ahead(
    packs: Iterable[Sequence[int]],
    reading: Reading,
    *,
    threads: int,
    prefetch_bytes: int,
    metrics: FeedMetrics,
    skip: Callable[[int, CorruptionError], None],
    buffers: HostBuffers,
    device: Device | None = None,
) -> Iterator[Batch]:
    """Batches of packs, in order; those that come next are being filled meanwhile.

    However it ends, also by an error or when nobody asks any more, no thread is left, and none
    writes into a buffer, nor is one still copied to the device.

    Args:
        packs: each batch's documents.
        reading: how they are read.
        threads: that read.
        prefetch_bytes: of batches that are being filled, wait for the consumer or are being
            copied; two at least, 64 at most.
        metrics: kept up to date.
        skip: as in `Filling.batch`.
        buffers: of a batch's states.
        device: where the batches are copied to; they stay in the host's memory by default.
    """
    most = min(_MOST_AHEAD, max(_LEAST_AHEAD, prefetch_bytes // buffers.cost))
    ahead = _LEAST_AHEAD  # grows to the most: the first batch doesn't wait until all have begun
    rest, cached_before = iter(packs), reading.cache_counts()
    queue: deque[Filling] = deque()
    delivery: Delivery = HostDelivery() if device is None else DeviceDelivery(device, buffers)
    with ThreadPoolExecutor(threads, "eagle3data-load") as pool:
        try:
            while True:
                asked = metrics.begin()
                while (
                    len(queue) + delivery.begun < ahead
                    and (members := next(rest, None)) is not None
                ):
                    queue.append(Filling(reading, members, buffers, pool))
                ahead = min(most, 2 * ahead)
                if not queue and not delivery.begun:
                    return
                ready = sum(filling.is_done for filling in queue) + delivery.begun
                braked = delivery.braked
                batch = delivery.next(queue, skip)
                waited = time.perf_counter() - asked - (delivery.braked - braked)
                metrics.add(batch, waited, ready, delivery.stalled)
                if (cached := reading.cache_counts()) and cached_before:
                    metrics.cache = cached - cached_before
                yield batch
                del batch
        finally:
            for filling in queue:
                filling.drop()
            delivery.close()


def batch_buffers(reading: Reading, *, pin: bool | None = None) -> HostBuffers:
    """Buffers for the states of one loader's batches, page-locked as `HostBuffers` says."""
    manifest = reading.documents.manifest
    bits = np.uint16 if manifest.storage.dtype is StorageDtype.BFLOAT16 else np.float16
    return HostBuffers(
        (len(reading.layers), reading.token_budget, manifest.hidden_size), bits, pin=pin
    )
