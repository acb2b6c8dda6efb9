"""SpecForge's own trainer on a data set of ours and on its own files: the same losses?

    TRITON_INTERPRET=1 python -m benchmarks.specforge_training STATES --model MODEL --folder DIR

Exports the set in SpecForge's layout, then trains twice with the same seed, as their command line
assembles it: from `rows_*/data_*.ckpt` with their store, and from STATES itself with
`interop.specforge_store`. Prints both loss by loss, and the seconds of each; ends with 1 if any
number differs. Needs specforge and triton (docs/speculators.md) and no GPU: their loss is a kernel,
which Triton's interpreter runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from specforge.algorithms.builtin import builtin_algorithm_registry
from specforge.config import Config
from specforge.data.preprocessing import process_token_dict_to_mappings
from specforge.distributed import destroy_distributed, init_distributed
from specforge.launch import build_disagg_offline_runtime, build_offline_runtime
from specforge.optimizer import BF16Optimizer
from specforge.runtime.data_plane.offline_reader import list_feature_files
from specforge.training.assembly import build_model_bundle
from specforge.training.model_loading import resolve_draft_config

from eagle3data.cli.export_dataset import final_norm
from eagle3data.interop.specforge_store import DataSetStore
from eagle3data.interop.write_specforge import write
from eagle3data.readers.dataset import Dataset, open_dataset

ALGORITHM = builtin_algorithm_registry().resolve("eagle3")
SEED = 0
TTT = 3
RUN = "same-losses"
HEAD = "model.embed_tokens.weight"
"""SmolLM2's head is its embedding."""
WITHOUT_GPU = {
    "SPECFORGE_DEVICE": "cpu",
    "FSDP_SHARDING": "NO_SHARD",  # torch's FSDP wants an accelerator; this is plain DDP
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
"""One process; what is computed stays theirs."""


def with_index(model: Path, folder: Path) -> Path:
    """The target as their loader wants it: a checkpoint in one file has an index too."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        (folder / path.name).unlink(missing_ok=True)
        (folder / path.name).symlink_to(path.resolve())
    index = {"weight_map": {HEAD: "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_vocabulary(dataset: Dataset, draft: int, path: Path) -> None:
    """Their map between both vocabularies, by the set's own counts."""
    counts: Counter[int] = Counter()
    for position in range(len(dataset)):
        sample = dataset.read(position, layers=[])
        counts.update(sample.input_ids[sample.loss_mask.astype(bool)].tolist())
    to_target, is_drafted = process_token_dict_to_mappings(
        counts, draft, dataset.manifest.target.vocab_size
    )
    torch.save({"d2t": to_target, "t2d": is_drafted}, path)


def configured(arguments: argparse.Namespace, model: Path, vocabulary: Path, files: Path) -> Any:
    """What their command line would be given."""
    config = Config.model_validate(
        {
            "model": {"target_model_path": str(model), "lm_head_key": HEAD},
            "data": {"hidden_states_path": str(files), "max_length": arguments.longest},
            "training": {"ttt_length": TTT, "attention_backend": "sdpa"},
        }
    )
    draft = resolve_draft_config(config, provider=ALGORITHM.providers.model.draft_config).to_dict()
    path = arguments.folder / "draft.json"
    path.write_text(json.dumps({**draft, "draft_vocab_size": arguments.draft_vocab}))
    config.model.draft_model_config = str(path)
    config.model.vocab_mapping_path = str(vocabulary)
    return config


def train(
    build: Callable[..., Any], arguments: argparse.Namespace, config: Any, **source: Any
) -> tuple[list[dict[str, float]], float]:
    """One run of their trainer: the numbers of every step, and the seconds of all of them."""
    set_seed(SEED)
    bundle = build_model_bundle(config, algorithm=ALGORITHM)
    steps: list[dict[str, float]] = []
    trainer = build(
        **source,
        algorithm=ALGORITHM,
        draft_model=bundle.model,
        target_head=bundle.target_head,
        strategy_kwargs=bundle.strategy_kwargs,
        optimizer_factory=lambda draft: BF16Optimizer(draft, lr=1e-3, total_steps=arguments.steps),
        run_id=RUN,
        output_dir=str(arguments.folder / build.__name__),
        ttt_length=TTT,
        max_len=arguments.longest,
        num_epochs=arguments.steps,
        max_steps=arguments.steps,
        seed=SEED,
        logger=lambda metrics, _: steps.append(without_clock(metrics)),
        log_interval=1,
    )
    began = time.perf_counter()
    trainer.fit()
    return steps, time.perf_counter() - began


def without_clock(metrics: dict[str, Any]) -> dict[str, float]:
    """What is computed; what is timed can't be the same twice."""
    return {name: float(value) for name, value in metrics.items() if not name.startswith("perf/")}


def main(words: list[str] | None = None) -> int:
    """Train twice, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("states")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the export and the runs")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--longest", type=int, default=128, help="tokens of a sample; cut there")
    parser.add_argument("--draft-vocab", type=int, default=4096)
    arguments = parser.parse_args(words)
    os.environ.update(WITHOUT_GPU)
    dataset = open_dataset(arguments.states)
    norm = final_norm(str(arguments.model))
    model = with_index(arguments.model, arguments.folder / "model")
    files, vocabulary = arguments.folder / "files", arguments.folder / "vocabulary.pt"
    write(dataset, files, final_norm=norm)
    write_vocabulary(dataset, arguments.draft_vocab, vocabulary)
    config = configured(arguments, model, vocabulary, files)
    store = DataSetStore(dataset, norm)
    refs = store.refs(RUN, split=None, ttt_length=TTT, max_len=arguments.longest)
    # They read data_10 before data_2.
    rows = [int(Path(name).stem.removeprefix("data_")) for name in list_feature_files(str(files))]
    refs = [refs[row] for row in rows]
    init_distributed()
    try:
        theirs, their_seconds = train(
            build_offline_runtime, arguments, config, hidden_states_path=str(files)
        )
        ours, our_seconds = train(
            build_disagg_offline_runtime, arguments, config, feature_store=store, refs=refs
        )
    finally:
        destroy_distributed()
    print("step  loss, from their files  loss, from the set")
    for number, (one, other) in enumerate(zip(theirs, ours, strict=True), 1):
        print(f"{number:4}  {one['loss']:22.9f}  {other['loss']:18.9f}")
    print(f"their files: {their_seconds:.1f} s; the set: {our_seconds:.1f} s")
    print(f"{sum(map(len, ours))} numbers: {'all the same' if theirs == ours else 'THEY DIFFER'}")
    return 0 if theirs == ours else 1


if __name__ == "__main__":
    sys.exit(main())
