"""The moving average: its formula, validation with it, and that training does not change."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from .. import checkpoint
from ..errors import Stopped
from ..evaluate import evaluate_run
from .support import CPU, ask_to_stop, at_step, equal, few_samples, rows, state, train_here

EMA = ("--ema.enabled=true", "--ema.decay=0.5")
EMA += ("--train.eval_every=1", "--run.keep=20", "--train.steps=6")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ema")
    train_here(folder, *EMA)
    return folder


def weights_after(folder: Path, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the model's weights after a step, and the average."""
    file = folder / f"first/checkpoints/step-{step:08d}/state.pt"
    saved = torch.load(file, weights_only=True)
    return saved["model"], saved["components"]["ema"]["eval_weights"]


def test_average_follows_its_formula(run: Path) -> None:
    for step in range(2, 7):
        model, average = weights_after(run, step)
        _, before = weights_after(run, step - 1)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = {name: decay * before[name] + (1 - decay) * model[name] for name in before}
        torch.testing.assert_close(average, expected)
        assert not equal(average, model)


def test_training_does_not_change(run: Path, tmp_path: Path) -> None:
    train_here(tmp_path, *EMA, "--ema.enabled=false")
    assert equal(state(run)["model"], state(tmp_path)["model"])
    assert equal(state(run)["optimizer"], state(tmp_path)["optimizer"])
    assert rows(run, "train") == rows(tmp_path, "train")
    assert rows(run, "val") != rows(tmp_path, "val")


def test_evaluation_has_the_average(run: Path) -> None:
    best = min(rows(run, "val"), key=lambda row: row["loss"])
    model, average = weights_after(run, best["step"])
    assert equal(checkpoint.load_weights(run / "first"), model | average)
    with few_samples():
        assert evaluate_run(run / "first", CPU)["loss"] == best["loss"]


def test_stopped_run_resumes_to_the_same_end(run: Path, tmp_path: Path) -> None:
    with at_step(3, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path, *EMA)
    train_here(tmp_path, *EMA)
    assert equal(state(run), state(tmp_path))
    assert rows(run, "val") == rows(tmp_path, "val")


def test_run_that_had_no_average_starts_with_its_weights(tmp_path: Path) -> None:
    train_here(tmp_path, *EMA, "--ema.enabled=false", "--train.steps=2")
    model = state(tmp_path)["model"]
    train_here(tmp_path, *EMA, "--train.steps=3")
    trained, average = weights_after(tmp_path, 3)
    decay = 4 / 13
    expected = {name: decay * model[name] + (1 - decay) * trained[name] for name in average}
    torch.testing.assert_close(average, expected)
