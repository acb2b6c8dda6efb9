"""Token ids of a text with the place of every token in it, so that spans of text become masks."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One way to tokenize a text.

    Attributes:
        ids: `[T]` token ids.
        starts, ends: `[T]` characters `[start, end)` that a token covers, ascending.
        exact: whether the tokens of a span must decode to its very characters; if not, white
            space that merged with the text round it is let pass.
    """

    ids: list[int]
    starts: list[int]
    ends: list[int]
    exact: bool

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Positions `[first, last)` of the tokens that hold characters `[start, end)`."""
        if start == end:
            first = bisect_left(self.starts, start)
            return first, first
        first = bisect_right(self.ends, start)
        return first, max(first, bisect_left(self.starts, end))

    def proves(self, decoded: str, wanted: str) -> bool:
        """Whether what a span's tokens decode to is what the text says there."""
        found, expected = nfc(decoded), nfc(wanted)
        return found == expected or (not self.exact and found.strip() == expected.strip())


def encodings(tokenizer: Any, text: str, spans: list[tuple[int, int]]) -> Iterator[Tokens]:
    """Ways to tokenize a text in which the spans can be masked, the most faithful one first.

    1. The whole text at once, where the tokenizer says which characters a token covers.
    2. Piece by piece, cut at the spans' ends, as an engine does it that is given the prompt and
       goes on from there. Needed where a token would reach over an end (an answer that begins
       with a newline) or the tokenizer gives no offsets (tiktoken); only if the pieces decode to
       the text again, which tokenizers that put a space before every text don't do.
    3. As 1, with white space let pass at the ends.
    """
    if tokenizer.is_fast:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
        whole = {"ids": list(encoded["input_ids"]), "starts": starts, "ends": ends}
        yield Tokens(**whole, exact=True)
    pieces = _pieces(tokenizer, text, spans)
    decoded = tokenizer.decode(
        pieces.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    if nfc(decoded) == nfc(text):
        yield pieces
    if tokenizer.is_fast:
        yield Tokens(**whole, exact=False)


def _pieces(tokenizer: Any, text: str, spans: list[tuple[int, int]]) -> Tokens:
    cuts = sorted({0, len(text), *(cut for span in spans for cut in span)})
    ids: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in pairwise(cuts):
        piece = tokenizer(text[start:end], add_special_tokens=False)["input_ids"]
        ids += piece
        starts += [start] * len(piece)
        ends += [end] * len(piece)
    return Tokens(ids=ids, starts=starts, ends=ends, exact=True)


def nfc(text: str) -> str:
    """The canonical composed form, which some tokenizers turn their text into."""
    return unicodedata.normalize("NFC", text)
