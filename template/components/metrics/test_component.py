"""The metrics are those of all validation samples; what is refused is one line."""

import json
from pathlib import Path

import pytest
import torch

from ..errors import UserError
from .support import rows, state, train_here

ON = ("--metrics.enabled=true", "--train.steps=8")
BEST = ("--train.monitor=f1", "--train.monitor_mode=max")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with F1 and recall; skip the rest for models that predict no classes."""
    folder = tmp_path_factory.mktemp("metrics")
    try:
        train_here(folder, *ON, '--metrics.names=["f1", "recall"]', *BEST)
    except UserError as error:
        if "predicts no classes" not in str(error) and "the inputs of `forward`" not in str(error):
            raise
        pytest.skip(f"needs another model: {error}")
    return folder


def test_metric_selects_the_best_checkpoint(run: Path) -> None:
    best = json.loads((run / "first/checkpoints/best.json").read_text())
    validations = rows(run, "val")
    assert best["value"] == max(row["f1"] for row in validations)
    assert all(0 <= row["recall"] <= 1 for row in validations)


def test_training_does_not_change(
    run: Path,
    tmp_path: Path,
) -> None:
    train_here(tmp_path, "--train.steps=8")
    torch.testing.assert_close(state(run)["model"], state(tmp_path)["model"], rtol=0, atol=0)
    assert rows(run, "train") == rows(tmp_path, "train")


def test_unknown_metric_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="metrics.names has accurracy, which is none of auroc"):
        train_here(tmp_path, *ON, '--metrics.names=["accurracy"]')
