"""The benchmark of a training step, small, and its counts against torch's own counter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import training
from eagle3data.trainer import ttt
from eagle3data.trainer.config import load_config
from eagle3data.trainer.draft import DraftConfig
from eagle3data.trainer.learner import Learner
from eagle3data.trainer.shift import MaskAlignment
from eagle3data.trainer.ttt import Speed, find_pairs

# fmt: off
SIZES = [
    "--hidden=32", "--intermediate=48", "--heads=4", "--key-value-heads=2", "--head-dim=8",
    "--vocab=97", "--draft-vocab=40", "--budget=64", "--document=20", "--ttt=3", "--device=cpu",
]
# fmt: on
SHAPE = DraftConfig(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=97,
    draft_vocab_size=40,
)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_operations_are_counted_as_torch_counts_them(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(ttt, "ROWS_MULTIPLE", 1)
    arguments = training.read_arguments([*SIZES, f"--mask-share={share}"])
    (pack,) = training.make_packs(arguments, 1)
    subject = training.make_subject(arguments, SHAPE, Speed())
    learner = Learner(subject, load_config(None, ["train.ttt_steps=3"]))
    with FlopCounterMode(display=False) as counter:
        learner.learn([pack], 1e-3)
    matrix_products = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    work = training.count_work(SHAPE, pack, 3)
    parts = {name: sum(part) for name, part in work.parts.items()}
    attention = parts.pop("attention")
    assert matrix_products == sum(parts.values())
    # Each unrolled row sees its document so far, and one key more a step; two products, three
    # times over with their gradients.
    pairs = find_pairs(pack, 3, MaskAlignment.SERVING)
    seen = [int(pack.position_ids[row]) + 1 + step for row in pairs.rows for step in range(3)]
    assert attention == 3 * 2 * 2 * 4 * 8 * sum(seen)


def test_it_runs_and_its_variants_agree(tmp_path: Path) -> None:
    report = training.main(
        [*SIZES, "--steps=1", "--warmup=1", f"--json={tmp_path / 'figures.json'}"]
    )
    assert json.loads((tmp_path / "figures.json").read_text()) == report
    plain, recomputed = report["variants"]
    assert recomputed["first_loss"] == pytest.approx(plain["first_loss"])
    assert recomputed["first_grad_norm"] == pytest.approx(plain["first_grad_norm"])
    assert set(plain["parts"]) >= {"copy", "teacher", "unrolled", "head, loss", "backward"}
