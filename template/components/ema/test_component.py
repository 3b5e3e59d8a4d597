"""The moving average: training does not change, and the average is validated."""

from pathlib import Path

import pytest

from ..evaluate import evaluate_run
from .support import CPU, equal, few_samples, rows, state, train_here

EMA = ("--ema.enabled=true", "--ema.decay=0.5")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ema")
    train_here(folder, *EMA)
    return folder


def test_training_does_not_change(
    run: Path,
    tmp_path: Path,
) -> None:
    train_here(tmp_path)
    assert equal(state(run)["model"], state(tmp_path)["model"])
    assert rows(run, "train") == rows(tmp_path, "train")
    assert rows(run, "val") != rows(tmp_path, "val")


def test_evaluation_has_the_average(run: Path) -> None:
    best = min(row["loss"] for row in rows(run, "val"))
    with few_samples():
        assert evaluate_run(run / "first", CPU)["loss"] == best
