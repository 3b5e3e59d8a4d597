"""Weights as safetensors: those of each checkpoint, also of one that was saved without them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from .. import checkpoint
from ..errors import Stopped
from .support import ask_to_stop, at_step, equal, state, train_here

ON = ("--safetensors.enabled=true", "--run.keep=9")


def files(folder: Path) -> list[Path]:
    return sorted((folder / "first/checkpoints").glob("step-*/weights.safetensors"))


def test_each_checkpoint_has_its_weights(tmp_path: Path) -> None:
    train_here(tmp_path, *ON)
    assert [int(file.parent.name[5:]) for file in files(tmp_path)] == [4, 8, 12]
    for file in files(tmp_path):
        saved = torch.load(
            file.parent / "state.pt",
            weights_only=True,
        )["model"]
        for name, value in load_file(file).items():
            assert torch.equal(
                value,
                saved[name],
            )
    assert not [*tmp_path.rglob("*.partial")]


def test_checkpoint_of_a_stop_has_its_weights_and_stays_intact(tmp_path: Path) -> None:
    stopping = at_step(1, ask_to_stop)
    with stopping, pytest.raises(Stopped):
        train_here(tmp_path, *ON)
    (file,) = files(tmp_path)
    assert file.parent.name == "step-00000002"
    assert checkpoint.newest(tmp_path / "first/checkpoints") == file.parent


def test_checkpoints_that_lack_the_file_get_it_later(tmp_path: Path) -> None:
    train_here(tmp_path, "--run.keep=9")
    assert not files(tmp_path)
    before = state(tmp_path)
    train_here(tmp_path, *ON)
    assert len(files(tmp_path)) == 3
    assert equal(
        before["model"],
        state(tmp_path)["model"],
    )
