"""The range test: its rates and losses, the suggestion, and that a stopped test resumes."""

import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ..components.lr_range_test import Exponential, LrRangeTestConfig, suggest
from ..errors import Stopped, UserError
from .support import ask_to_stop, at_step, rows, train_here

TEST = ["--lr_range_test.enabled=true", "--lr_range_test.highest=1e-2"]
TEST += ["--train.steps=8", "--log.every=1"]


def results(folder: Path) -> Any:
    return json.loads((folder / "first/lr_range_test.json").read_text())


def test_stopped_test_has_rate_and_loss_of_each_step(tmp_path: Path) -> None:
    original = Exponential.set

    def stop_and_set(
        schedule: Exponential,
        optimizer: Any,
        step: int,
    ) -> float:
        if step == 2:
            ask_to_stop()
        return original(schedule, optimizer, step)

    with mock.patch.object(Exponential, "set", stop_and_set), pytest.raises(Stopped):
        train_here(tmp_path, *TEST)
    assert not (tmp_path / "first/lr_range_test.json").exists()
    train_here(tmp_path, *TEST)
    points = results(tmp_path)
    logged = rows(tmp_path, "train")
    assert points["rates"] == pytest.approx([1e-6 * 1e4 ** (step / 7) for step in range(8)])
    assert points["rates"] == [row["lr"] for row in logged]
    assert points["losses"] == pytest.approx([row["loss"] for row in logged])
    assert (tmp_path / "first/lr_range_test.png").read_bytes().startswith(b"\x89PNG")


def test_suggestion_is_a_tenth_of_the_rate_at_the_lowest_loss() -> None:
    rates = [10 ** (step / 10 - 6) for step in range(61)]
    rate, _ = suggest(rates, [2 + (math.log10(rate) + 2) ** 2 for rate in rates])
    assert rate == pytest.approx(1e-3)
    losses = {
        "never fell": [2 + step / 60 for step in range(61)],
        "still fell at 1,": [2 - step / 60 for step in range(61)],
        "after 20 steps": [2.0] * 20,
    }
    for reason, smoothed in losses.items():
        rate, why = suggest(rates[: len(smoothed)], smoothed)
        assert rate is None
        assert reason in why


def test_run_that_trained_before_and_rates_that_fall_are_refused(tmp_path: Path) -> None:
    with at_step(1, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path, "--train.steps=8")
    with pytest.raises(UserError, match=r"lr_range_test.enabled is for a run of its own"):
        train_here(tmp_path, *TEST)
    with pytest.raises(UserError, match=r"^lr_range_test.highest is 1e-07: it must be above"):
        LrRangeTestConfig(highest=1e-7)
