"""`validate --level semantic`: seconds and memory for real states of a small target.

Texts are this repository's own (code, docs, the shipped conversations), run through the model with
transformers; the set is kept in the folder. Each check is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample
from eagle3data.writers.dataset_writer import DatasetWriter

REPOSITORY = Path(__file__).resolve().parent.parent
LENGTHS = (24, 60, 130, 240, 500, 900)
CHECK = """
import json, re, sys, time
start = time.perf_counter()
from eagle3data.validation.validate import validate
import torch
torch.set_num_threads(int(sys.argv[3]))
begin = time.perf_counter()
report = validate(sys.argv[1], "semantic", sys.argv[2] or None)
end = time.perf_counter()
status = open("/proc/self/status").read()
print(json.dumps({"verdict": report.verdict.value, "findings": len(report.findings),
                  "samples": report.checked.samples, "tokens": report.checked.tokens,
                  "import_s": round(begin - start, 1), "check_s": round(end - begin, 1),
                  "cpu_s": round(time.process_time(), 1),
                  "peak_MB": int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) // 1024}))
"""


def texts() -> Iterator[str]:
    """Code and docs, then the shipped conversations."""
    for pattern in ("docs/*.md", "eagle3data/**/*.py", "LICENSE"):
        for file in sorted(REPOSITORY.glob(pattern)):
            yield file.read_text()
    yield from (REPOSITORY / "tests/data/conversations.jsonl").read_text().splitlines()


def write_set(folder: Path, model_folder: Path, tokens: int) -> None:
    """Real states of the default layers: about so many tokens in samples of all `LENGTHS`."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    manifest = Manifest.for_model(str(model_folder), engine="transformers")
    ids = [token for text in texts() for token in tokenizer(text)["input_ids"]]
    with DatasetWriter.create(str(folder), manifest) as writer:
        start = number = 0
        while start < min(tokens, len(ids)):
            own = ids[start : start + LENGTHS[number % len(LENGTHS)]]
            writer.append(_sample(model, manifest.layers, own, f"sample-{number:05d}"))
            start, number = start + len(own), number + 1


def _sample(model: Any, layers: list[int], ids: list[int], name: str) -> Sample:
    import torch

    seen: dict[int, Any] = {}

    def keep(layer: int) -> Any:
        return lambda _, inputs: seen.__setitem__(layer, inputs[0][0].half().numpy())

    modules = [*model.model.layers, model.model.norm]
    hooks = [modules[layer].register_forward_pre_hook(keep(layer)) for layer in layers]
    with torch.no_grad():
        logprobs = model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1].float().log_softmax(0)
    for hook in hooks:
        hook.remove()
    return Sample(
        hidden_states=seen,
        input_ids=np.array(ids),
        loss_mask=np.array([0] + [1] * (len(ids) - 1)),
        sample_id=name,
        source=name,
        witness_token=int(logprobs.argmax()),
        witness_logprob=float(logprobs.max()),
    )


def main() -> None:
    """Write the set where it is missing, then check it with and without the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    folder = options.folder / f"semantic-{options.tokens}"
    if not (folder / "index" / "all.arrow").exists():
        start = time.perf_counter()
        write_set(folder, options.model, options.tokens)
        print(f"states made in {time.perf_counter() - start:.0f} s")
    for _ in range(options.rounds):
        for model in (str(options.model), ""):
            load = os.getloadavg()[0]
            command = [sys.executable, "-c", CHECK, str(folder), model, str(options.threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = {"model": bool(model), **json.loads(done.stdout), "load_before": round(load, 1)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
