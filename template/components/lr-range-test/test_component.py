"""The range test: its rates and losses, the suggestion, the files, and that a stopped test resumes."""

import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ..components.lr_range_test import Exponential, LrRangeTestConfig, suggest
from ..errors import Stopped, UserError
from .support import ask_to_stop, equal, rows, state, train_here

TEST = [
    "--lr_range_test.enabled=true",
    "--train.steps=8",
    "--log.every=1",
    "--lr_range_test.highest=1e-2",
]


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "first/lr_range_test.json").read_text())
    return found


def test_points_are_rate_and_loss_of_each_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tmp_path, *TEST)
    found = results(tmp_path)
    assert found["rates"] == pytest.approx([1e-6 * 1e4 ** (step / 7) for step in range(8)])
    assert found["losses"] == pytest.approx([row["loss"] for row in rows(tmp_path, "train")])
    assert [row["lr"] for row in rows(tmp_path, "train")] == found["rates"]
    assert (tmp_path / "first/lr_range_test.png").read_bytes().startswith(b"\x89PNG")
    assert "suggests no learning rate: it ended after 8 steps" in capsys.readouterr().out


def test_stopped_test_resumes_to_the_same_end(tmp_path: Path) -> None:
    original = Exponential.set

    def stop_and_set(schedule: Exponential, optimizer: Any, step: int) -> float:
        if step == 2:
            ask_to_stop()
        return original(schedule, optimizer, step)

    train_here(tmp_path / "whole", *TEST)
    with mock.patch.object(Exponential, "set", stop_and_set), pytest.raises(Stopped):
        train_here(tmp_path / "stopped", *TEST)
    assert not (tmp_path / "stopped/first/lr_range_test.json").exists()
    train_here(tmp_path / "stopped", *TEST)
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")
    assert equal(state(tmp_path / "stopped"), state(tmp_path / "whole"))


def test_suggestion_is_a_tenth_of_the_rate_at_the_lowest_loss() -> None:
    rates = [10 ** (step / 10 - 6) for step in range(61)]
    assert suggest(rates, [2 + (math.log10(rate) + 2) ** 2 for rate in rates])[0] == pytest.approx(
        1e-3
    )
    reasons = {
        "never fell": suggest(rates, [2 + step / 60 for step in range(61)]),
        "still fell at 1,": suggest(rates, [2 - step / 60 for step in range(61)]),
        "after 20 steps": suggest(rates[:20], [2.0] * 20),
    }
    for reason, (rate, why) in reasons.items():
        assert rate is None
        assert reason in why


def test_run_that_trained_before_and_rates_that_fall_are_refused(tmp_path: Path) -> None:
    train_here(tmp_path, "--train.steps=1")
    with pytest.raises(
        UserError, match=r"lr_range_test.enabled is for a run of its own: use another run.name"
    ):
        train_here(tmp_path, *TEST)
    with pytest.raises(
        UserError, match=r"^lr_range_test.highest is 1e-07: it must be above .*lowest, 1e-06$"
    ):
        LrRangeTestConfig(highest=1e-7)
