"""TensorBoard has each step of a resumed run once, and your own events stay."""

from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..model import build
from .support import at_step, rows, train_here

ON = "--tensorboard.enabled=true"


def crash(_: object) -> None:
    raise RuntimeError("crash")


def events(folder: Path) -> Any:
    """Return what TensorBoard shows of a folder."""
    # which has no types
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    return reader.EventAccumulator(
        str(folder), {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
    ).Reload()


def tracked() -> dict[str, Tensor]:
    """Return an image and a histogram."""
    return {"image": torch.full((4, 6, 3), 7, dtype=torch.uint8), "numbers": torch.arange(9.0)}


def build_tracked(*sections: Any) -> nn.Module:
    model = build(*sections)
    object.__setattr__(model, "tracked", tracked)
    return model


def test_steps_of_a_resumed_run_are_there_once(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "first/tensorboard"
    with SummaryWriter(folder) as own:
        own.add_scalar("own", 3.0, 11)
    with mock.patch.object(program, "build", build_tracked):
        with at_step(6, crash), pytest.raises(RuntimeError, match="crash"):
            train_here(tmp_path, ON)
        train_here(tmp_path, ON)  # from step 4, so step 6 is repeated, and the validation of step 4
    for split in ("train", "val"):
        found = events(folder / split)
        expected = rows(tmp_path, split)
        for name in expected[0].keys() - {"split", "step"}:
            shown = [(event.step, event.value) for event in found.Scalars(name)]
            assert shown == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in expected]
    validation = events(folder / "val")
    assert [event.step for event in validation.Images("image")] == [4, 8, 12]
    assert {(event.width, event.height) for event in validation.Images("image")} == {(6, 4)}
    assert [event.histogram_value.max for event in validation.Histograms("numbers")] == [8, 8, 8]
    assert "eval_every" in str(events(folder / "train").Tensors("config/text_summary")[0])
    assert [(event.step, event.value) for event in events(folder).Scalars("own")] == [(11, 3.0)]
