"""What a tracker is sent, also after a stop and on other ranks, and that its errors do not end a run."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..component import Components
from ..components import build_components
from ..components.tracker import Row, Tracker
from ..config_base import Section
from ..distributed import World
from ..errors import Stopped, UserError
from ..model import build
from .support import CPU, ask_to_stop, at_step, equal, rows, state, train_here


class Recorder(Tracker):
    """Records what it is told; each process of a test has the same records."""

    name = "json"  # the name of a package that there is

    def __init__(self, seen: list[Any], world: World = CPU, fails_at: int = 0) -> None:
        super().__init__(Section(), world)
        self.seen, self.fails_at = seen, fails_at

    def open(self, folder: Path, kept: dict[str, Any], about: dict[str, Any]) -> None:
        kept["opened"] = kept.get("opened", 0) + 1
        self.seen.append(
            ("open", kept["opened"], about["config"]["run"]["name"], *about["versions"])
        )

    def send(self, row: Row) -> None:
        torch.rand(1)
        if row.step == self.fails_at:
            raise OSError("no space left\nin the tracker")
        self.seen.append(row)

    def close(self, error: BaseException | None) -> None:
        self.seen.append(("close", type(error)))


def recorded(*trackers: Tracker) -> AbstractContextManager[Any]:
    return mock.patch.object(
        program,
        "build_components",
        lambda *given: Components([*build_components(*given), *trackers]),
    )


def test_tracker_has_the_rows_of_a_run_that_was_stopped_once(tmp_path: Path) -> None:
    seen: list[Any] = []
    with recorded(Recorder(seen)), at_step(4, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path)
    (tmp_path / "first/checkpoints/step-00000005/manifest.json").write_text("damaged")
    with recorded(Recorder(seen)), pytest.warns(UserWarning, match="damaged"):
        train_here(tmp_path)  # from step 4, so step 5 is repeated, and the validation of step 4
    found = [row for row in seen if isinstance(row, Row)]
    assert [row.step for row in found if row.split == "train"] == [2, 4, 5, 6, 8, 10, 12]
    assert [row.step for row in found if row.split == "val"] == [4, 8, 12]
    for split in ("train", "val"):
        sent = {row.step: row.scalars for row in found if row.split == split}
        for row in rows(tmp_path, split):
            assert row.pop("split") == split
            assert row.items() <= {"step": row["step"], **sent[row["step"]]}.items()
    others = [it for it in seen if not isinstance(it, Row)]
    opened = ("first", "python", "torch")
    assert others == [
        ("open", 1, *opened),
        ("close", Stopped),
        ("open", 2, *opened),
        ("close", type(None)),
    ]


def test_error_is_one_line_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tmp_path / "without")
    capsys.readouterr()
    seen: list[Any] = []
    with recorded(Recorder(seen, fails_at=6)):
        train_here(tmp_path / "failing")
    warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert warned == ["warning: json failed and is off until the end of this run: no space left"]
    assert [row.step for row in seen if isinstance(row, Row)] == [2, 4, 4]
    assert rows(tmp_path / "failing", "train") == rows(tmp_path / "without", "train")
    assert equal(state(tmp_path / "failing")["model"], state(tmp_path / "without")["model"])


def test_other_ranks_send_nothing(tmp_path: Path) -> None:
    seen: list[Any] = []
    with recorded(Recorder(seen, World(1, 2, torch.device("cpu")))):
        train_here(tmp_path)
    assert seen == []


def values_of(model: nn.Module) -> dict[str, Tensor]:
    """Return an image, a histogram and a scalar of a model, at random."""
    assert not model.training
    weight = next(model.parameters()).flatten()
    image = torch.randint(0, 255, (4, 4, 3), dtype=torch.uint8)
    return {"image": image, "weights": weight, "largest": weight.max()}


@pytest.mark.parametrize("fails", [False, True])
def test_values_of_the_model_are_sent_at_each_validation(tmp_path: Path, fails: bool) -> None:
    def build_tracked(*sections: Any) -> nn.Module:
        model = build(*sections)
        tracked = (lambda: {"cube": torch.zeros(2, 2, 2)}) if fails else lambda: values_of(model)
        object.__setattr__(model, "tracked", tracked)
        return model

    seen: list[Any] = []
    train_here(tmp_path / "without")
    with recorded(Recorder(seen)), mock.patch.object(program, "build", build_tracked):
        train_here(tmp_path / "with")
    assert rows(tmp_path / "with", "train") == rows(tmp_path / "without", "train")
    validations = [row for row in seen if isinstance(row, Row) and row.split == "val"]
    assert len(validations) == (0 if fails else 3)
    for row in validations:
        assert row.images["image"].shape == (4, 4, 3)
        assert row.scalars["largest"] == pytest.approx(row.histograms["weights"].max())


def test_package_that_is_missing_is_refused(tmp_path: Path) -> None:
    missing = mock.patch.object(Recorder, "name", "no_such")
    with (
        missing,
        recorded(Recorder([])),
        pytest.raises(UserError, match=r"^no_such.enabled needs the package"),
    ):
        train_here(tmp_path)
