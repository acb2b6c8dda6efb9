"""Prompts of the target's own making: it is given the first words of a message and goes on.

    python examples/smollm2/prompts.py --model MODEL --out prompts.jsonl --count 20000 \
        --exclude questions.jsonl ...

Needs vLLM. The first words are an opening and a subject from `beginnings.yaml`, so the messages
spread over kinds and topics; one in four gets a second turn. A message that repeats another, or
shares eight words in a row with one of the `--exclude` files, is left out: what a draft is judged
by must not be what it was trained on.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

BEGINNINGS = yaml.safe_load(Path(__file__).with_name("beginnings.yaml").read_text())
_SHARED_WORDS = 8
_SUMS_SHARE = 0.2
_SECOND_TURNS = 0.25


def main() -> None:
    """Write the file."""
    options = _arguments()
    rng = random.Random(options.seed)  # noqa: S311
    seen = {words for path in options.exclude for words in _runs_of_file(Path(path))}
    known: set[str] = set()
    kept = 0
    with Path(options.out).open("w", encoding="utf-8") as out:
        for kind, text in _messages(options, rng):
            plain = " ".join(_words(text))
            if plain in known or any(words in seen for words in _runs(text)):
                continue
            known.add(plain)
            turns = [text]
            if rng.random() < _SECOND_TURNS:
                turns.append(rng.choice(BEGINNINGS["follow_ups"]))
            out.write(json.dumps({"category": kind, "turns": turns}, ensure_ascii=False) + "\n")
            kept += 1
    print(f"{kept:,} prompts of {options.count:,} in {options.out}")


def _messages(options: argparse.Namespace, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Kind and text of the messages that the target ended by itself."""
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(options.model, dtype="bfloat16", enforce_eager=True, max_model_len=512,
              disable_log_stats=True, **json.loads(options.engine_args))  # fmt: skip
    tokenizer = llm.get_tokenizer()
    empty = [{"role": "user", "content": "\0"}]
    before = tokenizer.apply_chat_template(empty, tokenize=False).split("\0")[0]
    starts = [_start(rng) for _ in range(options.count)]
    prompts: list[Any] = [
        TokensPrompt(
            prompt_token_ids=tokenizer(before + text, add_special_tokens=False)["input_ids"]
        )
        for _, text in starts
    ]
    params = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=160)
    for (kind, start), output in zip(starts, llm.generate(prompts, params), strict=True):
        answer = output.outputs[0]
        if answer.finish_reason == "stop":
            yield kind, (start + answer.text).strip()


def _start(rng: random.Random) -> tuple[str, str]:
    given = BEGINNINGS
    if rng.random() < _SUMS_SHARE:
        a, b = rng.sample(given["names"], 2)
        n, m, x = rng.randint(5, 90), rng.randint(2, 12), rng.choice(given["things"])
        return "math", rng.choice(given["sums"]).format(a=a, b=b, n=n, m=m, x=x)
    kind = rng.choice(list(given["openings"]))
    return kind, f"{rng.choice(given['openings'][kind])} {rng.choice(given['subjects'])}"


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _words(text)
    for begin in range(len(words) - _SHARED_WORDS + 1):
        yield tuple(words[begin : begin + _SHARED_WORDS])


def _runs_of_file(path: Path) -> Iterator[tuple[str, ...]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for text in row.get("turns") or [row["prompt"]]:
            yield from _runs(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=20_000, help="messages to begin")
    parser.add_argument("--exclude", nargs="*", default=[], help="JSONL that must not be met")
    parser.add_argument("--engine-args", default="{}", help="JSON, for vLLM")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
