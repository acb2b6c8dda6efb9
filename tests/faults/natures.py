"""Texts of different nature for clean sets: no check may accuse any of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.faults.languages import CHINESE, GERMAN, RUSSIAN
from tests.faults.texts import ANSWERS

REPOSITORY = Path(__file__).resolve().parents[2]
CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Greece": "Athens", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Poland": "Warsaw", "Austria": "Vienna",
    "Hungary": "Budapest", "Portugal": "Lisbon", "Ireland": "Dublin", "Denmark": "Copenhagen",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Canada": "Ottawa", "Mexico": "Mexico City", "Peru": "Lima",
    "Chile": "Santiago", "Cuba": "Havana", "Brazil": "Brasilia", "Turkey": "Ankara",
    "Iran": "Tehran", "Iraq": "Baghdad", "Russia": "Moscow", "Ukraine": "Kyiv",
    "Romania": "Bucharest",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "tall": "short", "early": "late", "happy": "sad", "open": "closed",
    "full": "empty", "hard": "soft", "fast": "slow", "light": "heavy", "young": "old",
    "rich": "poor", "loud": "quiet", "near": "far", "deep": "shallow", "wide": "narrow",
    "clean": "dirty", "dry": "wet", "sweet": "bitter", "strong": "weak", "thick": "thin",
}  # fmt: skip
THINGS = ("bread", "glass", "a boat", "a violin", "paper", "a candle", "cheese", "a coat", "ink",
          "a kite", "soap", "a ladder", "rope", "a bell", "butter", "a basket", "steel", "a drum",
          "honey", "a chair")  # fmt: skip
MADE_OF = ("flour and water", "sand", "wood", "spruce and maple", "plants", "wax", "milk", "wool",
           "soot", "silk", "fat and ash", "two poles and rungs", "hemp", "bronze", "cream",
           "willow", "iron and coal", "skin and wood", "nectar", "beech")  # fmt: skip
SYSTEM = (
    "You are the assistant of a public library. Answer in at most three sentences. Speak plainly, "
    "never guess, and say so when you do not know. If a reader asks for opening hours, give those "
    "of the main building: Monday to Friday from nine to seven, Saturday from ten to two. Books "
    "may be kept for four weeks and renewed twice. Newspapers older than a month are in the "
    "cellar; the key is at the desk. Do not recommend shops, and do not discuss other readers. "
    "When somebody asks about science or the household, explain it as you would to a neighbour."
)

Message = dict[str, str]


def turn(question: str, answer: str) -> list[Message]:
    """A question and its answer."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def short_talks() -> list[list[Message]]:
    """300 chats of 20 to 35 tokens, no two alike."""
    talks = [
        turn(question.format(name), answer.format(city))
        for name, city in CAPITALS.items()
        for question, answer in (
            ("What is the capital of {}?", "It is {}."),
            ("Which city governs {}?", "{} does."),
        )
    ]
    talks += [
        turn(question.format(word), other)
        for word, other in OPPOSITES.items()
        for question in ("Say the opposite of {}.", "What is not {}?")
    ]
    talks += [
        turn(f"What is {thing} made of?", f"Of {stuff}.")
        for thing, stuff in zip(THINGS, MADE_OF, strict=True)
    ]
    talks += [
        turn(f"{a} plus {b}?", f"{a + b}.")
        if a % 2
        else turn(f"Add {b} to {a}.", f"That is {a + b}.")
        for a in range(3, 21)
        for b in range(5, 55, 5)
    ]
    return talks[:300]


def mixed(sentences: Sequence[str], count: int, each: int) -> list[str]:
    """Texts of some sentences in an order of their own."""
    draw = random.Random(0)
    return [" ".join(draw.sample(sentences, each)) for _ in range(count)]


def pieces(files: Sequence[Path], lines: int, count: int) -> list[str]:
    """Stretches of files that lie apart from each other."""
    found = []
    for file in files:
        text = file.read_text().splitlines(keepends=True)
        found += ["".join(text[at : at + lines]) for at in range(0, len(text) - lines, lines)]
    step = max(1, len(found) // count)
    return found[::step][:count]


def code() -> list[str]:
    """Python, kept as it once was: verdicts at the edge must not move with the repository."""
    return list(json.loads((REPOSITORY / "tests/data/code.json").read_text()))


def prose() -> list[str]:
    """Plain text, as a base model reads it."""
    words = " ".join(ANSWERS.values()).split()
    licence = (REPOSITORY / "LICENSE").read_text().split()
    both = [*licence[:900], *words]
    return [" ".join(both[at : at + 90]) for at in range(0, len(both) - 90, 90)]


def long() -> list[str]:
    """Three texts of more than a thousand tokens."""
    words = (REPOSITORY / "LICENSE").read_text().split()
    return [
        " ".join(words[:800]),
        " ".join([*" ".join(ANSWERS.values()).split()][:900]),
        (REPOSITORY / "eagle3data/validation/contents.py").read_text()[:4800],
    ]


def with_system() -> list[list[Message]]:
    first = {"role": "system", "content": SYSTEM}
    return [[first, *turn(question, answer)] for question, answer in ANSWERS.items()]


def chats(texts: list[str], question: str) -> list[list[Message]]:
    return [turn(question, text) for text in texts]


NATURES: dict[str, Callable[[], Any]] = {
    "prose": prose,
    "code": code,
    "german": lambda: chats(mixed(GERMAN, 16, 4), "Erzähl mir etwas."),
    "russian": lambda: mixed(RUSSIAN, 14, 2),
    "chinese": lambda: mixed(CHINESE, 14, 2),
    "short chats": short_talks,
    "long": long,
    "system prompt": with_system,
    "three samples": lambda: [turn(*pair) for pair in list(ANSWERS.items())[:3]],
}
"""Plain texts, or chats for the template, by name."""


def tokens(tokenizer: Any, text: str | list[Message]) -> tuple[list[int], list[int]]:
    """Ids and loss mask; of a chat, the mask covers what follows the last question."""
    if isinstance(text, str):
        ids = tokenizer(text)["input_ids"]
        return ids, [0] + [1] * (len(ids) - 1)
    asked = template(tokenizer, text[:-1], add_generation_prompt=True)
    ids = template(tokenizer, text)
    return ids, [int(at >= len(asked)) for at in range(len(ids))]


def template(tokenizer: Any, messages: list[Message], **more: Any) -> list[int]:
    """Token ids of a chat, without the system prompt that the template would put first."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, **more)
    own = messages[0]["role"] == "system"
    if not own and "<|im_start|>user" in text:
        text = text[text.index("<|im_start|>user") :]
    found: list[int] = tokenizer(text)["input_ids"]
    return found
