"""Trackio has each step of a resumed run once, in one run."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..model import build
from .support import at_step, rows, run_program, train_here

ON = "--trackio.enabled=true"


def crash(_: object) -> None:
    raise RuntimeError("crash")


def tracked() -> dict[str, Tensor]:
    """Return an image and a histogram."""
    return {"image": torch.full((4, 6, 3), 7, dtype=torch.uint8), "numbers": torch.arange(9.0)}


def build_tracked(*sections: Any) -> nn.Module:
    model = build(*sections)
    object.__setattr__(model, "tracked", tracked)
    return model


def test_resumed_run_is_one_run_with_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as trackio reads TRACKIO_DIR when it is imported."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(variable, raising=False)
    run_program("test_trackio", tmp_path)


def check(folder: Path) -> None:
    """Train, crash, resume, and read back what Trackio has."""
    import trackio

    with mock.patch.object(program, "build", build_tracked):
        with at_step(6, crash), pytest.raises(RuntimeError, match="crash"):
            train_here(folder, ON)
        train_here(folder, ON)  # from step 4, so step 6 is repeated, and the validation of step 4
    project = __package__.split(".")[0]
    (run,) = trackio.Api().runs(project)
    assert run.name == json.loads((folder / "first/tracker-trackio.json").read_text())["name"]
    assert run.config["config"]["train"]["steps"] == 12
    logs = trackio.SQLiteStorage.get_logs(project, run.name, run_id=run.id)
    for split in ("train", "val"):
        for name in rows(folder, split)[0].keys() - {"split", "step"}:
            found = [
                (log["step"], log[f"{split}/{name}"]) for log in logs if f"{split}/{name}" in log
            ]
            assert found == [(row["step"], pytest.approx(row[name])) for row in rows(folder, split)]
    assert [log["step"] for log in logs if "val/numbers" in log] == [4, 8, 12]
    assert len([*folder.rglob("*.png")]) == 3


if __name__ == "__main__":
    check(Path(sys.argv[1]))
