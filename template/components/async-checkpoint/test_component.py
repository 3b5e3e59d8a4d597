"""Checkpoints that a thread writes: training goes on, the files are the same, errors surface."""

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ..checkpoint import Checkpoints
from ..errors import Stopped, UserError
from .support import ask_to_stop, at_step, equal, rows, state, train_here

ASYNC = "--async_checkpoint.enabled=true"
write = Checkpoints.write


def without_own_entry(saved: dict[str, Any]) -> dict[str, Any]:
    saved["components"].pop("async_checkpoint", None)
    return saved


def test_files_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    train_here(tmp_path / "plain")
    train_here(tmp_path / "async", ASYNC)
    plain, other = tmp_path / "plain/first/checkpoints", tmp_path / "async/first/checkpoints"
    assert sorted(file.name for file in other.rglob("*")) == sorted(
        file.name for file in plain.rglob("*")
    )
    assert (other / "best.json").read_text() == (plain / "best.json").read_text()
    assert equal(
        without_own_entry(state(tmp_path / "async")), without_own_entry(state(tmp_path / "plain"))
    )
    assert rows(tmp_path / "async", "train") == rows(tmp_path / "plain", "train")


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    went_on, best = threading.Event(), tmp_path / "first/checkpoints/best.json"

    def write_later(checkpoints: Checkpoints, folder: Path, saved: dict[str, Any]) -> None:
        assert went_on.wait(200), "training waits for the checkpoint"
        assert saved["step"] > 4 or not best.exists(), (
            "best.json names a checkpoint that is not complete"
        )
        write(checkpoints, folder, saved)

    with mock.patch.object(Checkpoints, "write", write_later), at_step(6, lambda _: went_on.set()):
        train_here(tmp_path, ASYNC, "--run.keep=9")
    train_here(tmp_path / "plain", "--run.keep=9")
    for step in (4, 8, 12):
        file = f"first/checkpoints/step-{step:08d}/state.pt"
        mine, other = (
            torch.load(folder / file, weights_only=True)
            for folder in (tmp_path, tmp_path / "plain")
        )
        assert equal(without_own_entry(mine), without_own_entry(other))


def test_stopped_run_has_its_checkpoint_and_resumes_to_the_same_end(tmp_path: Path) -> None:
    train_here(tmp_path / "whole", ASYNC)
    with at_step(6, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path / "stopped", ASYNC)
    assert state(tmp_path / "stopped")["step"] == 7
    train_here(tmp_path / "stopped", ASYNC)
    assert equal(state(tmp_path / "stopped"), state(tmp_path / "whole"))


@pytest.mark.parametrize("last", [False, True])
def test_error_of_a_save_ends_the_run(tmp_path: Path, last: bool) -> None:
    failed = 12 if last else 4

    def fail(checkpoints: Checkpoints, folder: Path, saved: dict[str, Any]) -> None:
        if saved["step"] == failed:
            raise OSError(28, "No space left on device")
        write(checkpoints, folder, saved)

    with (
        mock.patch.object(Checkpoints, "write", fail),
        pytest.raises(UserError, match="No space left on device"),
    ):
        train_here(tmp_path, ASYNC)
    assert max(row["step"] for row in rows(tmp_path, "train")) == (12 if last else 8), (
        "the next save raises it"
    )
    assert (tmp_path / "first/checkpoints/best.json").exists() == last, (
        "it names no checkpoint that is missing"
    )
    train_here(tmp_path, ASYNC)
    assert state(tmp_path)["step"] == 12
