"""Checkpoints that a thread writes: training goes on, the files are the same, errors surface."""

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ..checkpoint import Checkpoints
from ..errors import UserError
from .support import at_step, equal, rows, state, train_here

ASYNC = "--async_checkpoint.enabled=true"
write = Checkpoints.write


def test_files_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    plain = tmp_path / "plain/first/checkpoints"
    other = tmp_path / "async/first/checkpoints"
    train_here(tmp_path / "plain")
    train_here(tmp_path / "async", ASYNC)
    names = {file.name for file in plain.rglob("*")}
    assert {file.name for file in other.rglob("*")} == names
    assert (other / "best.json").read_text() == (plain / "best.json").read_text()
    assert equal(state(tmp_path / "async")["model"], state(tmp_path / "plain")["model"])
    assert rows(tmp_path / "async", "train") == rows(tmp_path / "plain", "train")


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    went_on = threading.Event()
    best = tmp_path / "first/checkpoints/best.json"

    def write_later(
        checkpoints: Checkpoints,
        folder: Path,
        saved: dict[str, Any],
    ) -> None:
        assert went_on.wait(200), "training waits for the checkpoint"
        assert saved["step"] > 4 or not best.exists(), "best.json names an incomplete checkpoint"
        write(checkpoints, folder, saved)

    with mock.patch.object(Checkpoints, "write", write_later), at_step(6, lambda _: went_on.set()):
        train_here(tmp_path, ASYNC)
    assert state(tmp_path)["step"] == 12


@pytest.mark.parametrize(("failed", "last_step"), [(4, 8), (12, 12)])
def test_error_of_a_save_ends_the_run(
    tmp_path: Path,
    failed: int,
    last_step: int,
) -> None:
    def fail(
        checkpoints: Checkpoints,
        folder: Path,
        saved: dict[str, Any],
    ) -> None:
        if saved["step"] == failed:
            raise OSError(28, "No space left on device")
        write(checkpoints, folder, saved)

    full = pytest.raises(UserError, match="No space left on device")
    with mock.patch.object(Checkpoints, "write", fail), full:
        train_here(tmp_path, ASYNC)
    assert rows(tmp_path, "train")[-1]["step"] == last_step, "the next save raises it"
    train_here(tmp_path, ASYNC)
    assert state(tmp_path)["step"] == 12
