"""What an epoch is packed from: samples of one or several data sets, whole or cut to the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from eagle3data.readers.dataset import Dataset
from eagle3data.schema.errors import InputError
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.statistics import LayerStatistics
from eagle3data.storage import layout

OverBudget = Literal["refuse", "split"]


class Documents:
    """Selected samples, numbered in the order in which they were added, pieces one by one.

    A sample over the budget is one document a piece: the budget's length each, the last one what
    is left. So a piece but the last fills a pack alone, and no pack holds two of one sample.

    Attributes:
        manifest: of any of the sets.
        sets: the data sets, as they were added.
        lengths: `[documents]` int32, tokens of each.
    """

    def __init__(self, manifest: Manifest, token_budget: int, over_budget: OverBudget) -> None:
        """None yet.

        Args:
            manifest: of any of the sets; in what a batch depends on they are all alike.
            token_budget: the most tokens that a document may have.
            over_budget: `refuse` samples that have more, or `split` them.

        Raises:
            InputError: `over_budget` is something else, or the budget is no number of tokens.
        """
        if over_budget not in get_args(OverBudget):
            raise InputError(f"over_budget is {over_budget!r}; expected 'refuse' or 'split'.")
        if token_budget < 1:
            raise InputError(f"token_budget is {token_budget}; expected a number of tokens from 1.")
        self.manifest = manifest
        self._budget = token_budget
        self._may_split = over_budget == "split"
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self.sets: list[Dataset] = []
        self._set = np.empty(0, np.int32)
        self._row = np.empty(0, np.int64)
        self._first = np.empty(0, np.int32)
        self._is_piece = np.empty(0, np.bool_)
        self.lengths = np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, dataset: Dataset, rows: npt.NDArray[np.int64]) -> range:
        """Add samples of a data set.

        Args:
            dataset: where they are.
            rows: `[n]` of its index, ascending.

        Returns:
            Their numbers.

        Raises:
            InputError: a sample is longer than the budget, and may not be split.
        """
        lengths = dataset.lengths[rows]
        if not self._may_split:
            self._require_short(lengths, dataset)
        pieces = -(-lengths // self._budget)
        row_of = np.repeat(np.arange(len(rows)), pieces)
        piece = np.arange(len(row_of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        first = (piece * self._budget).astype(np.int32)
        numbers = range(len(self), len(self) + len(row_of))
        self._set = np.append(self._set, np.full(len(row_of), len(self.sets), np.int32))
        self._row = np.append(self._row, rows[row_of])
        self._first = np.append(self._first, first)
        self._is_piece = np.append(self._is_piece, pieces[row_of] > 1)
        tokens = np.minimum(lengths[row_of] - first, self._budget).astype(np.int32)
        self.lengths = np.append(self.lengths, tokens)
        self.sets.append(dataset)
        return numbers

    def _require_short(self, lengths: npt.NDArray[np.int32], dataset: Dataset) -> None:
        too_long = int((lengths > self._budget).sum())
        if too_long:
            worst = int(lengths.max())
            raise InputError(
                f"{too_long} samples of {dataset.url} are longer than the token budget "
                f"{self._budget} (the longest has {worst} tokens). Raise token_budget to {worst}, "
                'cut them with over_budget="split", or leave them out with where=.'
            )

    def dataset(self, document: int) -> Dataset:
        """The data set that a document is of."""
        return self.sets[int(self._set[document])]

    def row(self, document: int) -> int:
        """Its sample's row in that set's index."""
        return int(self._row[document])

    def first(self, document: int) -> int:
        """Its first token's place in its sample: 0 but for later pieces."""
        return int(self._first[document])

    def length(self, document: int) -> int:
        """Its tokens."""
        return int(self.lengths[document])

    def is_piece(self, document: int) -> bool:
        """Whether it is less than its sample."""
        return bool(self._is_piece[document])

    def pieces_among(self, documents: npt.NDArray[np.int64]) -> bool:
        """Whether any of them is less than its sample."""
        return bool(self._is_piece[documents].any())

    def sample_id(self, document: int) -> str:
        """Name of its sample."""
        return self.dataset(document).sample_id(self.row(document))

    def sample_ids(self, documents: Sequence[int]) -> list[str]:
        """Names of their samples."""
        numbers, rows = self.places_in_index(np.asarray(documents, np.int64))
        sets = [self.sets[number] for number in numbers.tolist()]
        return [one.sample_id(row) for one, row in zip(sets, rows.tolist(), strict=True)]

    def firsts(self, documents: Sequence[int]) -> npt.NDArray[np.int32]:
        """`[n]`, of each as `first`."""
        return self._first[np.asarray(documents, np.int64)]

    def shard(self, document: int) -> int:
        """The shard that holds it, in its data set."""
        return self.dataset(document).shard_of(self.row(document))

    def places(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`[n, 2]`: the number of each one's set, and its shard there."""
        places = np.empty((len(documents), 2), np.int64)
        places[:, 0] = self._set[documents]
        for number, dataset in enumerate(self.sets):
            which = places[:, 0] == number
            offsets = dataset.offsets[self._row[documents[which]]]
            places[which, 1] = offsets // dataset.manifest.storage.axis.shard_tokens
        return places

    def places_in_index(
        self, documents: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """`[n]` each: the number of its set, and its sample's row in that set's index."""
        return self._set[documents], self._row[documents]

    def selections(self) -> list[npt.NDArray[np.int64]]:
        """Each set's rows that documents are of; a row comes once a piece."""
        return [self._row[self._set == number] for number in range(len(self.sets))]

    def read_states(
        self, layer: int, document: int, out: npt.NDArray[Any], *, verify: bool = True
    ) -> None:
        """Read one layer of a document into `[T, H]`, in the calling thread.

        Raises:
            CorruptionError: a missing or damaged object or chunk; `out` then means nothing.
        """
        self.dataset(document).read_rows_here(
            layout.states_array(layer),
            self.row(document),
            self.first(document),
            out,
            verify=verify,
        )

    def read_tokens(
        self, document: int, *, verify: bool = True
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Token ids `[T]` int32 and loss mask `[T]` uint8, equal to the index's.

        Raises:
            CorruptionError: the shard and the index disagree (`tokens_differ`), or damage.
        """
        ids, mask = self.dataset(document).read_tokens(self.row(document), verify=verify)
        rows = slice(self.first(document), self.first(document) + self.length(document))
        return ids[rows], mask[rows]

    def stated_statistics(self, document: int, layer: int) -> LayerStatistics | None:
        """What the index says of a layer; None of a piece, since it speaks of whole samples."""
        if self.is_piece(document):
            return None
        return self.dataset(document).stated_statistics(self.row(document), layer)


def require_alike(sets: Sequence[Dataset], layers: Sequence[int]) -> None:
    """Refuse data sets whose samples can't stand in one batch.

    Raises:
        InputError: another target, tokenizer, norm or dtype, or a set without one of the layers.
    """
    first = sets[0]
    for other in sets[1:]:
        differing = [
            f"its {what} is {there}, not {here}"
            for (what, here), (_, there) in zip(_nature(first), _nature(other), strict=True)
            if here != there and None not in {here, there}
        ]
        if differing:
            raise InputError(
                f"{other.url} can't be mixed with {first.url}: {'; '.join(differing)}. Mix sets "
                "of one target, stored alike (`eagle3data copy` changes the codec, not these)."
            )
    for dataset in sets:
        missing = sorted(set(layers) - set(dataset.manifest.layers))
        if missing:
            raise InputError(
                f"{dataset.url} has layers {dataset.manifest.layers}, not {missing}."
                + (" Give layers= that all sets have." if len(sets) > 1 else "")
            )


def _nature(dataset: Dataset) -> list[tuple[str, str | int | None]]:
    """What one batch can hold only one of; None where it is not known."""
    manifest = dataset.manifest
    return [
        ("target's config", manifest.target.config_digest),
        ("target's revision", manifest.target.revision),
        ("hidden size", manifest.hidden_size),
        ("number of layers", manifest.target.num_hidden_layers),
        ("vocabulary", manifest.target.vocab_size),
        ("tokenizer", manifest.tokenizer.digest),
        ("norm state", manifest.capture.norm_state.value),
        ("storage dtype", manifest.storage.dtype.value),
    ]
