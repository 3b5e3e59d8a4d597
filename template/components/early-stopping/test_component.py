"""Early stopping: which validation ends the run, and that a resumed run decides the same."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from .. import train as program
from ..errors import Stopped
from ..metrics import evaluate
from .support import ask_to_stop, at_step, equal, rows, state, train_here

OPTIONS = ["--early_stopping.enabled=true", "--early_stopping.patience=2", "--train.eval_every=1"]
LOSSES = [3.0, 4.0, 2.0, 2.5, 2.0, 1.0]


def validate(
    folder: Path,
    losses: list[float],
    *options: str,
) -> list[float]:
    """Train with validations that return these losses; return those of metrics.jsonl."""
    done = len(rows(folder, "val")) if (folder / "first").exists() else 0
    remaining = iter(losses[max(done - 1, 0) :])  # a resumed run validates again

    def results(*arguments: Any) -> dict[str, float]:
        value = next(remaining)
        return evaluate(*arguments) | {"loss": value, "score": value}

    with mock.patch.object(program, "evaluate", results):
        train_here(folder, *OPTIONS, *options)
    return [row["loss"] for row in rows(folder, "val")]


def test_run_ends_after_validations_without_improvement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate(tmp_path, LOSSES) == LOSSES[:5]
    message = "ends the run at step 5: 2 validations in a row did not improve loss\n"
    assert message in capsys.readouterr().out
    assert validate(tmp_path, LOSSES) == LOSSES[:5], "started again, it does not train"
    more = ("--early_stopping.patience=3", "--train.steps=6", "--run.allow_changes=true")
    assert validate(tmp_path, LOSSES, *more) == LOSSES


def test_higher_is_better_and_small_improvements_do_not_count(tmp_path: Path) -> None:
    scores = [0.5, 0.65, 0.7, 0.74, 0.9]
    options = ["--train.monitor=score", "--train.monitor_mode=max", "--train.steps=5"]
    assert validate(tmp_path / "none", scores, *options) == scores
    options.append("--early_stopping.min_delta=0.1")
    assert validate(tmp_path / "delta", scores, *options) == scores[:4]


def test_stopped_run_decides_as_the_uninterrupted_one(tmp_path: Path) -> None:
    validate(tmp_path / "whole", LOSSES)
    with at_step(3, ask_to_stop), pytest.raises(Stopped):
        validate(tmp_path / "stopped", LOSSES)
    assert validate(tmp_path / "stopped", LOSSES) == LOSSES[:5]
    assert equal(state(tmp_path / "stopped"), state(tmp_path / "whole"))
