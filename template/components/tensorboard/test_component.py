"""TensorBoard has each step of a resumed run once, and your own events stay."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from .support import rows
from .test_tracker import crash_and_resume


def events(folder: Path) -> Any:
    """Return what TensorBoard shows of a folder."""
    # which has no types
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    every = {
        "scalars": 0,
        "images": 0,
        "histograms": 0,
        "tensors": 0,
    }
    return reader.EventAccumulator(
        str(folder),
        every,
    ).Reload()


def test_steps_of_a_resumed_run_are_there_once(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "first/tensorboard"
    with SummaryWriter(folder) as own:
        own.add_scalar("own", 3.0, 11)
    crash_and_resume(tmp_path, "--tensorboard.enabled=true")
    for split in ("train", "val"):
        shown = events(folder / split).Scalars("loss")
        expected = rows(tmp_path, split)
        assert [event.step for event in shown] == [row["step"] for row in expected]
        losses = [row["loss"] for row in expected]
        assert [event.value for event in shown] == pytest.approx(
            losses,
            rel=1e-6,
        )
    validation = events(folder / "val")
    assert [event.step for event in validation.Images("image")] == [4, 8, 12]
    assert validation.Images("image")[0].width == 6
    histograms = validation.Histograms("numbers")
    assert [event.histogram_value.max for event in histograms] == [8, 8, 8]
    config = events(folder / "train").Tensors("config/text_summary")[0]
    assert "eval_every" in str(config)
    (own_event,) = events(folder).Scalars("own")
    assert own_event.value == 3
