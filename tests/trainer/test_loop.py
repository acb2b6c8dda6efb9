"""The loop on a tiny set: it learns, resumes exactly, stops when asked and on what isn't finite."""

from __future__ import annotations

import errno
import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.proto import event_pb2

from eagle3data.schema.errors import InputError, LayerError, MismatchError, SpaceError
from eagle3data.trainer.checkpoint import load_last
from eagle3data.trainer.config import TrainConfig, load_config
from eagle3data.trainer.inputs import gather
from eagle3data.trainer.learner import NonFiniteError
from eagle3data.trainer.loop import Outcome, Run, train
from eagle3data.trainer.loss import LOSSES
from tests.trainer import small


def config(*more: str) -> TrainConfig:
    return load_config(None, [*small.SETTINGS, *more])


def curve(out: Path) -> list[dict[str, Any]]:
    """The run's records without what differs between any two runs: the time they took."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in {"seconds", "waited"}} for line in lines]


class Stop:
    """Raises a signal (or any error) when the record of a step comes in."""

    def __init__(self, step: int, error: Exception | None = None) -> None:
        self.step, self.error = step, error

    def __call__(self, record: dict[str, Any]) -> None:
        if record["kind"] == "train" and record["step"] == self.step:
            if self.error:
                raise self.error
            signal.raise_signal(signal.SIGINT)


def test_it_learns(made: tuple[str, str], tmp_path: Path) -> None:
    outcome = train(
        *made,
        tmp_path,
        config(
            "train.max_steps=60",
            "train.loss=kl",
            "train.eval_every=20",
            "optimizer.learning_rate=2e-2",
        ),
    )
    held_out = outcome.summary["held_out"]
    assert not outcome.interrupted
    assert held_out["end"]["loss"] < 0.6 * held_out["start"]["loss"]
    assert held_out["end"]["accuracy"] > outcome.summary["commonest_token_accuracy"]
    assert json.loads((tmp_path / "summary.json").read_text()) == outcome.summary
    records = curve(tmp_path)
    assert records[0]["kind"] == "definitions"
    assert [r["step"] for r in records if r["kind"] == "train"] == list(range(1, 61))
    assert records[-1]["kind"] == "eval"
    best = min((r for r in records if r["kind"] == "eval"), key=lambda r: float(r["loss"]))
    assert outcome.summary["best"] == {"step": best["step"], "loss": best["loss"]}
    pointers = json.loads((tmp_path / "checkpoints.json").read_text())
    assert pointers == {"last": "step-00000060", "best": f"step-{best['step']:08d}"}
    assert {path.name for path in tmp_path.glob("step-*")} == set(pointers.values())


def test_tensorboard_has_the_same_numbers(made: tuple[str, str], tmp_path: Path) -> None:
    chosen = config("train.max_steps=4", "train.tensorboard=true")
    train(*made, tmp_path, chosen)
    (path,) = (tmp_path / "tensorboard").iterdir()
    raw = path.read_bytes()
    found: dict[tuple[str, int], float] = {}
    while raw:  # length, its checksum, the event, its checksum
        size = int.from_bytes(raw[:8], "little")
        event = event_pb2.Event.FromString(raw[12 : 12 + size])
        raw = raw[16 + size :]
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    for record in curve(tmp_path):
        if record["kind"] not in {"train", "eval"}:
            continue
        for name in ("loss", "accuracy", "simulated_acceptance_length"):
            tag = f"{record['kind']}/{name}"
            assert found[tag, record["step"]] == pytest.approx(record[name], rel=1e-5)
        rate = record["steps"][1]["acceptance"]
        assert found[f"{record['kind']}/step_1/acceptance", record["step"]] == pytest.approx(rate)


@pytest.mark.parametrize("choice", ["copied", "frozen"])
def test_a_head_taken_from_the_target(made: tuple[str, str], tmp_path: Path, choice: str) -> None:
    chosen = config("train.max_steps=2", f"model.lm_head={choice}", "model.fc_norm=true")
    inputs = gather(*made, chosen)
    target = inputs.head.lm_head[inputs.draft_ids]
    assert torch.equal(inputs.draft.lm_head.weight, target)
    train(*made, tmp_path, chosen)
    saved = load_last(tmp_path)
    assert saved is not None
    assert torch.equal(saved.draft.parameters["lm_head.weight"], target) == (choice == "frozen")
    assert saved.draft.description.config.fc_norm
    resumed = train(*made, tmp_path, chosen)
    assert resumed.summary["steps"] == 2


def test_sets_are_mixed_and_long_samples_split(made: tuple[str, str], tmp_path: Path) -> None:
    other = str(small.data_set(tmp_path / "other", made[1], samples=7))
    chosen = config(f"data.more=[{other}]", "data.token_budget=20", "data.over_budget=split")
    inputs = gather(*made, chosen)
    sets = [inputs.dataset, *inputs.more]
    assert max(int(length or 0) for length in sets[0].index["length"].to_pylist()) > 20
    assert len(str(inputs.description.data_set).split()) == 2
    tokens = 0
    for one in sets:
        pairs = zip(one.index["length"].to_pylist(), one.index["split"].to_pylist(), strict=True)
        tokens += sum(int(n or 0) for n, split in pairs if split == "train")
    outcome = train(*made, tmp_path / "out", chosen)
    assert outcome.summary["tokens"] == tokens
    assert not outcome.interrupted


def test_weights_choose_how_much_of_each_set_an_epoch_has(
    made: tuple[str, str], tmp_path: Path
) -> None:
    """The second set is a copy of the first one's first seven samples."""
    other = str(small.data_set(tmp_path / "other", made[1], samples=7))
    shares = {}
    for name, weights in (("weighed", "[0.2,0.8]"), ("plain", "null")):
        tokens: dict[bool, int] = {True: 0, False: 0}
        chosen = config(f"data.more=[{other}]", f"data.weights={weights}")
        for batch in gather(*made, chosen).loader:
            lengths = batch.cu_seqlens.diff().tolist()
            for sample, length in zip(batch.sample_ids, lengths, strict=True):
                tokens[sample in {f"s{n}" for n in range(7)}] += length
        shares[name] = tokens[True] / sum(tokens.values())
    assert shares["plain"] < 0.5
    assert shares["weighed"] > 0.7
    with pytest.raises(InputError, match="weights"):
        gather(*made, config(f"data.more=[{other}]", "data.weights=[1.0]"))


def test_norm_weights_move(made: tuple[str, str], tmp_path: Path) -> None:
    train(*made, tmp_path, config("train.max_steps=5", "train.autocast=bfloat16"))
    saved = load_last(tmp_path)
    assert saved is not None
    norms = [t for name, t in saved.draft.parameters.items() if name.endswith("norm.weight")]
    assert len(norms) == 4
    assert all(tensor.dtype == torch.float32 and bool((tensor != 1).any()) for tensor in norms)


@pytest.mark.parametrize("setting", ["train.accumulation=3", "optimizer.name=muon"])
def test_a_run_killed_anywhere_continues_as_if_it_had_not_been(
    made: tuple[str, str], tmp_path: Path, setting: str
) -> None:
    chosen = config("train.max_steps=12", setting)
    whole = train(*made, tmp_path / "whole", chosen)
    for step in (2, 7, 10):
        with pytest.raises(ZeroDivisionError):  # nothing is saved on the way out: as good as a kill
            train(*made, tmp_path / "killed", chosen, report=Stop(step, ZeroDivisionError()))
    resumed = train(*made, tmp_path / "killed", chosen)
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    assert resumed.summary == whole.summary
    first, second = load_last(tmp_path / "whole"), load_last(tmp_path / "killed")
    assert first is not None
    assert second is not None
    for name, tensor in first.draft.parameters.items():
        assert torch.equal(tensor, second.draft.parameters[name])


def test_ctrl_c_saves_and_the_same_command_continues(made: tuple[str, str], tmp_path: Path) -> None:
    chosen = config("train.max_steps=10")
    before = signal.getsignal(signal.SIGINT)
    outcome = train(*made, tmp_path / "stopped", chosen, report=Stop(5))
    assert outcome.interrupted
    assert outcome.summary["steps"] == 5
    assert signal.getsignal(signal.SIGINT) is before
    assert not train(*made, tmp_path / "stopped", chosen).interrupted
    train(*made, tmp_path / "whole", chosen)
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")


def test_a_finished_run_is_left_alone(made: tuple[str, str], tmp_path: Path) -> None:
    first = train(*made, tmp_path, config("train.max_steps=3"))
    before = (tmp_path / "metrics.jsonl").read_text()
    assert train(*made, tmp_path, config("train.max_steps=3")) == first
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_another_run_in_the_folder_is_refused(made: tuple[str, str], tmp_path: Path) -> None:
    train(*made, tmp_path, config("train.max_steps=2"))
    with pytest.raises(MismatchError, match=r"optimizer\.learning_rate was 0\.003, now it is 0\.5"):
        train(*made, tmp_path, config("train.max_steps=2", "optimizer.learning_rate=0.5"))
    train(*made, tmp_path, config("train.max_steps=2", "train.save_every=1"))


def test_epochs_take_every_training_sample_once_each(made: tuple[str, str], tmp_path: Path) -> None:
    inputs = gather(*made, config())
    lengths = inputs.dataset.index["length"].to_pylist()
    splits = inputs.dataset.index["split"].to_pylist()
    tokens = sum(int(n or 0) for n, s in zip(lengths, splits, strict=True) if s == "train")
    outcome = train(*made, tmp_path, config("train.epochs=2", "train.accumulation=2"))
    assert outcome.summary["tokens"] == 2 * tokens
    assert outcome.summary["steps"] == outcome.summary["total_steps"]


def test_accumulated_packs_weigh_by_their_kept_positions(
    made: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three packs in one step give the gradient of one pack that holds all three."""
    together = small.pack([25, 15, 39], budget=80)
    gradients = []
    for name, packs in (("one", [together]), ("three", small.unpacked(together))):
        inputs = gather(*made, config("optimizer.max_grad_norm=1e9"))
        run = Run(inputs, tmp_path / name, lambda _: None)
        assert run.records
        run.records.begin({})
        kept: dict[str, Any] = {}
        monkeypatch.setattr(
            run.learner.optimizers[0],
            "step",
            lambda kept=kept, draft=inputs.draft: kept.update(
                {name: p.grad.clone() for name, p in draft.named_parameters()}
            ),
        )
        run.train_step(packs)
        gradients.append(kept)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-5)


def test_what_is_not_finite_stops_with_the_samples(
    made: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(*made, tmp_path, config("train.max_steps=9"), report=Stop(4))
    monkeypatch.setitem(LOSSES, config().train.loss, lambda logits, *_: logits.sum(-1) * math.nan)
    with pytest.raises(NonFiniteError, match=r"step 5: .*s\d+.*validate"):
        train(*made, tmp_path, config("train.max_steps=9"))
    saved = load_last(tmp_path)
    assert saved is not None
    assert saved.step == 4


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([2, 3, 4, 5], "final layer 6 is not captured"),
        ([2, 3, 6], "fuses 3 aux layers"),
        ([1, 2, 3, 4, 6], "fuses 3 aux layers"),
    ],
)
def test_a_set_that_cannot_teach_is_refused(
    made: tuple[str, str], tmp_path: Path, layers: list[int], message: str
) -> None:
    states = str(small.data_set(tmp_path / "states", made[1], layers=layers, samples=7))
    with pytest.raises((InputError, LayerError), match=message):
        train(states, made[1], tmp_path / "out", config())
    assert not (tmp_path / "out").exists()


def test_three_of_more_layers_can_be_chosen(made: tuple[str, str], tmp_path: Path) -> None:
    states = str(small.data_set(tmp_path / "states", made[1], layers=[1, 2, 3, 4, 6], samples=7))
    inputs = gather(states, made[1], config("model.aux_layers=[1,3,4]"))
    assert inputs.loader.layers == [1, 3, 4, 6]
    assert inputs.description.aux_layers == [1, 3, 4]


def test_another_model_is_refused(made: tuple[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(made[1], other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**settings, "vocab_size": 98}))
    with pytest.raises(InputError, match="vocab_size is 97 in the data set and 98 in the model"):
        train(made[0], str(other), tmp_path / "out", config())


def test_a_model_of_the_same_sizes_is_refused_unless_it_is_said(
    made: tuple[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(made[1], other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**settings, "rope_theta": 123.0}))
    with pytest.raises(MismatchError, match=r"config\.json is another.*allow_other_target=true"):
        train(made[0], str(other), tmp_path / "out", config())
    assert not (tmp_path / "out").exists()
    gather(made[0], str(other), config("data.allow_other_target=true"))


def test_a_split_that_is_not_there(made: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'test' \(data\.eval_split\).*eval, train"):
        train(*made, tmp_path / "out", config("data.eval_split=test"))
    outcome: Outcome = train(*made, tmp_path, config("data.eval_split=null", "train.max_steps=2"))
    assert outcome.summary["held_out"] == {"start": None, "end": None}


def test_a_second_run_in_the_folder_at_once_is_refused(
    made: tuple[str, str], tmp_path: Path
) -> None:
    seen: list[str] = []

    def meanwhile(_: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="another process is writing"):
            train(*made, tmp_path / "run", config("train.max_steps=1"))
        seen.append("refused")

    train(*made, tmp_path / "run", config("train.max_steps=1"), report=meanwhile)
    assert seen


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "state"])
def test_a_damaged_checkpoint_is_named(made: tuple[str, str], tmp_path: Path, damage: str) -> None:
    out = tmp_path / "run"
    train(*made, out, config("train.max_steps=3"))
    (folder,) = out.glob("step-*")
    optimizer = folder / "optimizer.pt"
    whole = optimizer.read_bytes()
    if damage == "missing":
        optimizer.unlink()
    elif damage == "state":
        (folder / "state.json").write_text('{"version": 2}')
    else:
        optimizer.write_bytes(whole[: {"empty": 0, "truncated": len(whole) // 2}[damage]])
    with pytest.raises(InputError, match="is a damaged checkpoint"):
        train(*made, out, config("train.max_steps=3"))


def test_a_full_disk_keeps_the_checkpoints_before(
    made: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    train(*made, out, config("train.max_steps=3"))
    before = sorted(path.name for path in out.glob("step-*"))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(SpaceError, match="no space left"):
        train(*made, tmp_path / "other", config("train.max_steps=1"))
    assert sorted(path.name for path in out.glob("step-*")) == before
    assert not list(tmp_path.glob("other/step-*"))
