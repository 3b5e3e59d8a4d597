"""What a tracker is sent, also after a stop, and that its errors do not end a run."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..components.tracker import Row, Tracker
from ..config_base import Section
from ..errors import Stopped, UserError
from ..model import build
from .support import CPU, ask_to_stop, at_step, equal, rows, state, train_here


def tracked() -> dict[str, Tensor]:
    """Return an image, a histogram and a scalar."""
    torch.rand(1)  # changes no training
    image = torch.full(
        (4, 6, 3),
        7,
        dtype=torch.uint8,
    )
    return {
        "image": image,
        "numbers": torch.arange(9.0),
        "seven": torch.tensor(7),
    }


def build_tracked(*sections: Any) -> nn.Module:
    """Build the model with a method `tracked`."""
    model = build(*sections)
    object.__setattr__(model, "tracked", tracked)
    return model


def crash(_: object) -> None:
    raise RuntimeError("crash")


def crash_and_resume(
    folder: Path,
    *options: str,
) -> None:
    """Train twice: step 6 is repeated, and the validation of step 4."""
    with mock.patch.object(program, "build", build_tracked):
        with at_step(6, crash), pytest.raises(RuntimeError, match="crash"):
            train_here(folder, *options)
        train_here(folder, *options)


class Recorder(Tracker):
    """Records what it is told; each process of a test has the same records."""

    name = "json"  # the name of a package that there is

    def __init__(
        self,
        seen: list[Any],
        fails_at: int = 0,
    ) -> None:
        super().__init__(
            Section(),
            CPU,
        )
        self.seen = seen
        self.fails_at = fails_at

    def open(
        self,
        folder: Path,
        kept: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        self.seen.append(("open", about["config"]["run"]["name"], dict(kept.get("sent", {}))))

    def send(self, row: Row) -> None:
        if row.step == self.fails_at:
            raise OSError("no space left\nin the tracker")
        self.seen.append(row)

    def close(
        self,
        error: BaseException | None,
    ) -> None:
        self.seen.append(("close", type(error)))


def recorded(tracker: Tracker) -> AbstractContextManager[Any]:
    return mock.patch.object(program, "build_components", return_value=tracker)


def test_tracker_has_the_rows_of_a_run_that_was_stopped_once(tmp_path: Path) -> None:
    seen: list[Any] = []
    with recorded(Recorder(seen)), at_step(4, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path)
    (tmp_path / "first/checkpoints/step-00000005/manifest.json").write_text("damaged")
    with recorded(Recorder(seen)), pytest.warns(UserWarning, match="damaged"):
        train_here(tmp_path)  # from step 4, so step 5 is repeated, and the validation of step 4
    sent = [row for row in seen if isinstance(row, Row)]
    assert [row.step for row in sent if row.split == "train"] == [2, 4, 5, 6, 8, 10, 12]
    assert [row.step for row in sent if row.split == "val"] == [4, 8, 12]
    last = rows(tmp_path, "val")[-1]
    assert sent[-1].scalars["loss"] == last["loss"]
    first: list[Any] = [("open", "first", {}), ("close", Stopped)]
    second = [("open", "first", {"train": 5, "val": 4}), ("close", type(None))]
    assert [event for event in seen if event not in sent] == first + second


def test_error_is_one_line_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tmp_path / "without")
    seen: list[Any] = []
    capsys.readouterr()
    with (
        recorded(
            Recorder(
                seen,
                fails_at=6,
            )
        ),
        mock.patch.object(program, "build", build_tracked),
    ):
        train_here(tmp_path / "failing")
    said = capsys.readouterr().err
    assert "warning: json failed and is off until the end of this run: no space left\n" in said
    sent = [row for row in seen if isinstance(row, Row)]
    assert [row.step for row in sent] == [2, 4, 4]
    assert sent[-1].images["image"].shape == (4, 6, 3)
    assert sent[-1].histograms["numbers"].shape == (9,)
    assert sent[-1].scalars["seven"] == 7
    assert rows(tmp_path / "failing", "train") == rows(tmp_path / "without", "train")
    assert equal(state(tmp_path / "failing")["model"], state(tmp_path / "without")["model"])


def test_package_that_is_missing_is_refused(tmp_path: Path) -> None:
    missing = mock.patch.object(
        Recorder,
        "name",
        "no_such",
    )
    with missing, recorded(Recorder([])), pytest.raises(UserError, match="no_such.enabled needs"):
        train_here(tmp_path)
