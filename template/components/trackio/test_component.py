"""Trackio has each step of a resumed run once, in one run."""

import json
from pathlib import Path

import pytest

from ..distributed import World
from .support import rows, run_group
from .test_tracker import crash_and_resume


def test_resumed_run_is_one_run_with_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as trackio reads TRACKIO_DIR when it is imported."""
    monkeypatch.setenv(
        "TRACKIO_DIR",
        str(tmp_path / "trackio"),
    )
    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(variable, raising=False)
    assert run_group(check, tmp_path) == [0]


def check(folder: Path, _: World) -> None:
    """Train, crash, resume, and read back what Trackio has."""
    import trackio

    crash_and_resume(folder, "--trackio.enabled=true")
    project = __package__.split(".")[0]
    (run,) = trackio.Api().runs(project)
    kept = json.loads((folder / "first/tracker-trackio.json").read_text())
    assert run.name == kept["name"]
    assert run.config["config"]["train"]["steps"] == 12
    logs = trackio.SQLiteStorage.get_logs(
        project,
        run.name,
        run_id=run.id,
    )
    for split in ("train", "val"):
        name = f"{split}/loss"
        sent = [log for log in logs if name in log]
        expected = rows(folder, split)
        assert [log["step"] for log in sent] == [row["step"] for row in expected]
        losses = [row["loss"] for row in expected]
        assert [log[name] for log in sent] == pytest.approx(losses)
    assert [log["step"] for log in logs if "val/numbers" in log] == [
        4,
        8,
        12,
    ]
    assert len([*folder.rglob("*.png")]) == 3
