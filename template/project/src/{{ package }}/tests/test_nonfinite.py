"""A step whose loss is not finite, and a loss spike: the run stops, skips the step, or rolls back."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .. import checkpoint, data, faults
from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..faults import nonfinite
from ..loaders import Plan, TrainOrder
from ..train import train
from .conftest import read_rows, run_ranks_in_turn, unsupported
from .faulty import Faulty, install, micro_batch

pytestmark = pytest.mark.usefixtures("short_validation")

OPTIONS = ["--train.steps=8", "--train.micro_batch=4", "--train.accumulate=2", "--train.eval_every=4", "--log.every=2"]
OPTIONS += ["--train.ema=0.9", "--optim.schedule=cosine"]
SKIP, ROLL_BACK = "--train.on_nonfinite=skip", "--train.on_nonfinite=rollback"


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    """What fails in the runs of a test."""
    found = Faulty()
    install(found, monkeypatch.setattr)
    return found


def state_of(run: Path, step: int) -> dict[str, Any]:
    return checkpoint.read_state(run / f"checkpoints/step-{step:08d}")


def same(some: Any, others: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(some, dict):
        return some.keys() == others.keys() and all(same(some[key], others[key]) for key in some)
    if isinstance(some, list):
        return len(some) == len(others) and all(map(same, some, others))
    return torch.equal(some, others) if isinstance(some, torch.Tensor) else bool(some == others)


def test_skipped_step_leaves_no_trace(
    config: Callable[..., Config], world: World, tmp_path: Path, faulty: Faulty, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the state, in the metrics and in the schedule; a resumed run skips the same steps."""
    faulty.factors = {micro_batch(3, 1): math.nan, micro_batch(5): math.nan, micro_batch(6): math.nan}
    options = [*OPTIONS, SKIP, "--checkpoint.every=1", "--checkpoint.keep=9", "--train.max_nonfinite=2"]
    cfg = config("--run.name=whole", *options)
    train(cfg, world)
    run = tmp_path / "whole"
    before, after = state_of(run, 2), state_of(run, 3)
    assert all(same(before[key], after[key]) for key in ("model", "ema", "scaler", "updates"))
    assert same(before["optimizer"]["state"], after["optimizer"]["state"])
    rows = read_rows(run, "train")
    assert [(row["step"], row["skipped_steps"]) for row in rows] == [(1, 0), (2, 0), (4, 1), (7, 3), (8, 3)]
    assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)
    assert "loss is nan at step 3: skipped; its samples are in" in capsys.readouterr().err
    noted = [json.loads(line) for line in (run / "nonfinite.jsonl").read_text().splitlines()]
    plan = Plan.make(cfg.train, len(data.load(cfg.data).train), 1)
    order = iter(TrainOrder(plan, 0, 0, first_step=2))
    assert noted[0]["samples"] == [[*next(order), *next(order)]]
    assert [record["step"] for record in noted] == [3, 5, 6]
    shutil.copytree(run, tmp_path / "cut")
    for step in (6, 7, 8):
        shutil.rmtree(tmp_path / f"cut/checkpoints/step-{step:08d}")
    train(config("--run.name=cut", "--run.resume=auto", *options), world)
    assert read_rows(tmp_path / "cut", "train") == rows
    assert (tmp_path / "cut/nonfinite.jsonl").read_text() == (run / "nonfinite.jsonl").read_text()
    assert same(state_of(tmp_path / "cut", 8), state_of(run, 8))


def test_rolled_back_run_equals_one_that_skips(
    config: Callable[..., Config], world: World, tmp_path: Path, faulty: Faulty, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty.factors = {micro_batch(7, 1): math.nan}
    train(config("--run.name=skipped", SKIP, *OPTIONS), world)
    if unsupported([ROLL_BACK]):
        with pytest.raises(UserError, match="cannot go back; use skip"):
            train(config("--run.name=back", ROLL_BACK, *OPTIONS), world)
        return
    train(config("--run.name=back", ROLL_BACK, *OPTIONS), world)
    assert "back to" in capsys.readouterr().err
    for split in ("train", "val"):
        assert read_rows(tmp_path / "back", split) == read_rows(tmp_path / "skipped", split)
    ours, theirs = state_of(tmp_path / "back", 8), state_of(tmp_path / "skipped", 8)
    assert all(same(ours[key], theirs[key]) for key in ("model", "optimizer", "ema", "updates", "best"))
    faulty.factors = {micro_batch(3): math.nan}
    with pytest.raises(UserError, match="loss is nan at step 3, before the first checkpoint: lower optim.lr"):
        train(config("--run.name=early", ROLL_BACK, *OPTIONS), world)


@pytest.mark.parametrize("action", [SKIP, ROLL_BACK])
def test_number_of_bad_steps_is_bounded(
    config: Callable[..., Config], world: World, tmp_path: Path, faulty: Faulty, action: str
) -> None:
    """The second return to a checkpoint leaves out all steps after it, as the weights may be to blame."""
    if unsupported([action]):
        return
    faulty.factors = {micro_batch(step): math.nan for step in (6, 7, 8)}
    options = [*OPTIONS, action, "--run.name=a", "--train.max_nonfinite=2"]
    bound = "back to .*step-00000004 train.max_nonfinite=2 times" if action == ROLL_BACK else "=2 such steps in a row"
    with pytest.raises(UserError, match=f"^loss is nan at step 8, and .*{bound}.*: lower optim.lr$"):
        train(config(*options), world)
    noted = [json.loads(line)["step"] for line in (tmp_path / "a/nonfinite.jsonl").read_text().splitlines()]
    assert noted == [6, 7, 8]
    assert math.isfinite(read_rows(tmp_path / "a", "train")[-1]["loss"])
    assert not (tmp_path / "a/checkpoints/step-00000008").exists()


def test_loss_spike_is_a_bad_step(
    config: Callable[..., Config], world: World, tmp_path: Path, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonfinite, "LEAST", 3)
    faulty.factors = {micro_batch(7): 50.0}
    options = [*OPTIONS, "--train.spike_factor=8"]
    with pytest.raises(UserError, match=r"loss is .*, above train.spike_factor=8 times its running mean .*, at step 7"):
        train(config("--run.name=stopped", *options), world)
    train(config("--run.name=a", SKIP, *options), world)
    assert read_rows(tmp_path / "a", "train")[-1]["skipped_steps"] == 1


REFUSED = [
    (["--debug.sync=error", SKIP], "debug.sync is error: train.on_nonfinite synchronizes in every step"),
    (["--speed.step_graph=true", SKIP], "speed.step_graph is true: it captures the update"),
    (["--optim.schedule=range", "--train.spike_factor=9", "--train.steps=40"], "train.spike_factor is 9.0: a range"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_conflicting_options_are_refused(config: Callable[..., Config], options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        faults.hooks(config(*options))


def test_ranks_skip_a_step_of_which_one_is_bad(tmp_path: Path) -> None:
    options = [*OPTIONS, SKIP, "--run.name=a"]
    run_ranks_in_turn(2, [options], tmp_path, f"nan:{micro_batch(3, 3)}")
    rows = read_rows(tmp_path / "a", "train")
    assert [row["skipped_steps"] for row in rows] == [0, 1, 1, 1]
    assert all(math.isfinite(row["loss"]) for row in [*rows, *read_rows(tmp_path / "a", "val")])
    (noted,) = map(json.loads, (tmp_path / "a/nonfinite.jsonl").read_text().splitlines())
    assert list(map(len, noted["samples"])) == [8, 8]
