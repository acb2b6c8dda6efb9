"""What the format's version 1 was frozen by: C, S, aligned sample starts, map against pread.

Prints Markdown tables. Each case takes turns with the others of its table; a ratio is to the
first row of its table. The layer files are of profile `none`, so that only the layout differs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt

from eagle3data.bench.turns import Case, Timing, take_turns
from eagle3data.schema.axis import TokenAxis
from eagle3data.schema.manifest import Codec
from eagle3data.storage import mapped
from eagle3data.storage.codecs import ChunkCodec
from eagle3data.storage.root import Root
from eagle3data.storage.shard_decoder import ShardDecoder
from eagle3data.storage.shard_encoder import ShardEncoder

HIDDEN_SIZES = (576, 7168)
CHUNKS = (16, 32, 64, 128)
OBJECT_BYTES = 1 << 28
ROUNDS = 3
LENGTHS = {576: (30, 800), 7168: (1000, 2400)}
"""Tokens of a sample, from and to: short chats for the small model, long ones for the large."""


@dataclass(frozen=True)
class Layout:
    """One layer's shard of samples.

    Attributes:
        hidden: width of a row.
        chunk: C.
        aligned: every sample starts on a chunk.
        samples: first token and length of each.
    """

    hidden: int
    chunk: int
    aligned: bool
    samples: list[tuple[int, int]]

    @classmethod
    def of(cls, hidden: int, chunk: int, *, aligned: bool, nbytes: int = OBJECT_BYTES) -> Layout:
        """As many samples as an object of `nbytes` holds; the same lengths for every layout."""
        rng = np.random.default_rng(hidden)
        low, high = LENGTHS[hidden]
        tokens = nbytes // (hidden * 2)
        samples: list[tuple[int, int]] = []
        cursor = 0
        while True:
            length = int(rng.integers(low, high + 1))
            taken = -(-length // chunk) * chunk if aligned else length
            if cursor + taken > tokens:
                return cls(hidden, chunk, aligned, samples)
            samples.append((cursor, length))
            cursor += taken

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return sum(length for _, length in self.samples)

    @property
    def chunks(self) -> int:
        """Chunks of the object."""
        first, length = self.samples[-1]
        return -(-(first + length) // self.chunk)

    @property
    def unused(self) -> float:
        """Rows of the object that belong to no sample, as a share of the tokens."""
        return self.chunks * self.chunk / self.tokens - 1

    @property
    def codec(self) -> ChunkCodec:
        """Of its chunks."""
        shape = (self.chunk, self.hidden)
        return ChunkCodec(profile=Codec.NONE, dtype=np.dtype("<f2"), shape=shape)

    def write(self, root: Root, name: str) -> None:
        """Write the object; the rows' values do not matter."""
        values = np.random.default_rng(0).standard_normal((self.chunk, self.hidden))
        chunk = values.astype(np.float16)
        encoder, upload = ShardEncoder(self.chunks), root.begin(name)
        for number in range(self.chunks):
            upload.write(encoder.add(number, self.codec.encode(chunk)))
        upload.write(encoder.finish())
        upload.commit()

    def open(self, root: Root, name: str) -> ShardDecoder:
        """A reader of the object."""
        return ShardDecoder(root, self.codec, array=name, shard=0, name=name, chunks=self.chunks)

    def read_all(self, decoder: ShardDecoder, out: npt.NDArray[np.float16]) -> None:
        """Every sample in random order into `out`; an unaligned one by way of whole chunks."""
        order = np.random.default_rng(1).permutation(len(self.samples))
        for first, length in (self.samples[position] for position in order):
            chunks = range(first // self.chunk, -(-(first + length) // self.chunk))
            if self.aligned:
                decoder.read(chunks, out[:length], "sample")
                continue
            covering = np.empty((len(chunks) * self.chunk, self.hidden), np.float16)
            decoder.read(chunks, covering, "sample")
            skip = first % self.chunk
            out[:length] = covering[skip : skip + length]


def layouts_table(
    root: Root, hidden: int, chunks: tuple[int, ...], title: str, nbytes: int = OBJECT_BYTES
) -> None:
    """C, aligned against not, and map against pread where there is a choice."""
    out = np.ones((LENGTHS[hidden][1] + 128, hidden), np.float16)
    cases: list[Case] = []
    layouts = [
        Layout.of(hidden, chunk, aligned=aligned, nbytes=nbytes)
        for chunk in chunks
        for aligned in (True, False)
    ]
    for layout in layouts:
        name = f"c{layout.chunk}{'a' if layout.aligned else 'u'}"
        layout.write(root, name)
        ways = ("map", "pread") if root.is_local and layout.aligned else ("",)
        for way in ways:
            with mock.patch.object(mapped, "is_local_disk", lambda _, w=way: w != "pread"):
                decoder = layout.open(root, name)
            cases.append(
                Case(
                    name=f"{layout.chunk} | {'yes' if layout.aligned else 'no'} | {way or '-'} | "
                    f"{layout.unused:.1%}",
                    run=lambda layout=layout, decoder=decoder: layout.read_all(decoder, out),  # type: ignore[misc]
                    nbytes=layout.tokens * hidden * 2,
                )
            )
    _print(title, "C | aligned | read by | unused rows", take_turns(cases, ROUNDS))


def objects_table(root: Root, hidden: int, sizes: tuple[int, ...], title: str) -> None:
    """S: one sample of a shard that was not open yet, and the writing of a shard."""
    out = np.ones((LENGTHS[hidden][1] + 128, hidden), np.float16)
    reads, writes = [], []
    for nbytes in sizes:
        layout = Layout.of(hidden, 64, aligned=True, nbytes=nbytes)
        names = [f"s{nbytes}/{number}" for number in range(8 if root.is_local else 2)]
        for name in names:
            layout.write(root, name)
        first, length = layout.samples[-1]
        chunks = TokenAxis(shard_tokens=1 << 40, chunk_tokens=64).chunks_of(first, length)

        def read(
            layout: Layout = layout,
            names: list[str] = names,
            chunks: range = chunks,
            length: int = length,
        ) -> None:
            for name in names:
                layout.open(root, name).read(chunks, out[:length], "sample")

        count = iter(range(1000))

        def write(
            layout: Layout = layout, nbytes: int = nbytes, count: Iterator[int] = count
        ) -> None:
            layout.write(root, f"w{nbytes}/{next(count)}")

        label = f"{nbytes / 1e6:.0f} MB"
        read_bytes = len(names) * length * hidden * 2
        reads.append(Case(name=label, run=read, nbytes=read_bytes))
        writes.append(
            Case(
                name=label,
                run=write,
                nbytes=layout.chunks * 64 * hidden * 2,
                after=_forget(root, f"w{nbytes}"),
            )
        )
    _print(f"{title}: a sample of a shard that is opened for it", "S", take_turns(reads, ROUNDS))
    _print(f"{title}: writing a layer's shard, durable", "S", take_turns(writes, 3))


def _forget(root: Root, folder: str) -> Callable[[], None]:
    def forget() -> None:
        if root.is_local:
            shutil.rmtree(root.join(folder))
        else:
            root.fs.rm(root.join(folder), recursive=True)

    return forget


def _print(title: str, columns: str, timings: list[Timing]) -> None:
    print(f"\n### {title}\n\n| {columns} | GB/s | of the first |")
    print("|" + "---|" * (columns.count("|") + 3))
    for timing in timings:
        share = timing.speed / timings[0].speed
        print(f"| {timing.case.name} | {timing.speed / 1e9:.2f} | {share:.2f} |", flush=True)


@contextmanager
def s3_server() -> Iterator[str]:
    """A URL in an S3 server on loopback, in a process of its own."""
    import boto3

    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "5559"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ.update(
        AWS_ENDPOINT_URL="http://127.0.0.1:5559",
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
    )
    try:
        for _ in range(100):
            try:
                boto3.client("s3").create_bucket(Bucket="bench")
                break
            except OSError:
                time.sleep(0.1)
        yield "s3://bench/format"
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=".", help="where the scratch data goes")
    folder = parser.parse_args().folder
    sizes = tuple(1 << power for power in (25, 27, 28, 29, 30))
    for hidden in HIDDEN_SIZES:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            root = Root(str(Path(scratch) / "disk"))
            layouts_table(root, hidden, CHUNKS, f"H {hidden}, on disk, page cache warm")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            root = Root(str(Path(scratch) / "disk"))
            objects_table(root, hidden, sizes, f"H {hidden}, on disk")
    # The server is written in Python and is what is slow here; a little shows the ratios.
    with s3_server() as url:
        for hidden in HIDDEN_SIZES:
            title = f"H {hidden}, S3 on loopback"
            layouts_table(Root(f"{url}/{hidden}"), hidden, (16, 64), title, nbytes=1 << 25)
        objects_table(Root(f"{url}/s"), 7168, sizes[:2], "H 7168, S3 on loopback")


if __name__ == "__main__":
    main()
