"""Early stopping: which validation ends the run, that it stays ended, and that a resumed run decides the same."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from .. import train as program
from ..components.early_stopping import EarlyStopping, EarlyStoppingConfig
from ..errors import Stopped
from ..metrics import evaluate
from .support import CPU, ask_to_stop, at_step, config, equal, rows, state, train_here

OPTIONS = ["--early_stopping.enabled=true", "--early_stopping.patience=2", "--train.eval_every=1"]


def validations(
    folder: Path, values: list[float], *options: str, name: str = "loss"
) -> list[float]:
    """Train with validations that return these values, and return those of metrics.jsonl."""
    done = len(rows(folder, "val")) if (folder / "first").exists() else 0
    remaining = iter(values[max(done - 1, 0) :])  # a resumed run validates again

    def results(*arguments: Any) -> dict[str, float]:
        return evaluate(*arguments) | {name: next(remaining)}

    with mock.patch.object(program, "evaluate", results):
        train_here(folder, *OPTIONS, f"--train.monitor={name}", *options)
    return [row[name] for row in rows(folder, "val")]


def test_run_ends_after_validations_without_improvement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [3.0, 4.0, 2.0, 2.5, 2.0, 1.0]
    assert validations(tmp_path, values) == values[:5]
    found = "early_stopping ends the run at step 5: 2 validations in a row did not improve loss 2\n"
    assert found in capsys.readouterr().out
    assert validations(tmp_path, values) == values[:5], "started again, it does not train"
    assert state(tmp_path)["step"] == 5
    assert validations(tmp_path, values, "--early_stopping.patience=3", "--train.steps=6") == values


def test_higher_is_better_and_small_improvements_do_not_count(tmp_path: Path) -> None:
    values, options = [0.5, 0.65, 0.7, 0.74, 0.9], ["--train.monitor_mode=max", "--train.steps=5"]
    assert validations(tmp_path / "none", values, *options, name="score") == values
    options.append("--early_stopping.min_delta=0.1")
    assert validations(tmp_path / "delta", values, *options, name="score") == values[:4]


def test_result_that_is_not_a_number_is_no_improvement(tmp_path: Path) -> None:
    assert len(validations(tmp_path, [float("nan")] * 6)) == 2


def test_stopped_run_decides_as_the_uninterrupted_one(tmp_path: Path) -> None:
    values = [3.0, 4.0, 2.0, 2.5, 2.0, 1.0]
    validations(tmp_path / "whole", values)
    with at_step(3, ask_to_stop), pytest.raises(Stopped):
        validations(tmp_path / "stopped", values)
    assert validations(tmp_path / "stopped", values) == values[:5]
    assert equal(state(tmp_path / "stopped"), state(tmp_path / "whole"))


def test_validation_that_the_checkpoint_has_counted_counts_once(tmp_path: Path) -> None:
    """As of a checkpoint that was saved because the next sample is unreadable."""
    run = mock.Mock(step=4, cfg=config(tmp_path))
    first, second = (EarlyStopping(EarlyStoppingConfig(), CPU) for _ in range(2))
    first.on_validation(run, {"loss": 1.0})
    second.load_state_dict(first.state_dict())
    second.on_validation(run, {"loss": 1.0})
    assert second.state_dict() == first.state_dict() == {"best": 1.0, "since": 0, "step": 4}
