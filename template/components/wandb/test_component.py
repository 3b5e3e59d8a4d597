"""What W&B has of a resumed run: one run, whose two files begin where the training does."""

import json
from pathlib import Path

import pytest

from .test_tracker import crash_and_resume


def test_resumed_run_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    crash_and_resume(tmp_path, "--wandb.enabled=true")
    folder = tmp_path / "first"
    kept = json.loads((folder / "tracker-wandb.json").read_text())
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert [file.stem for file in files] == [f"run-{kept['id']}"] * 2
    assert kept["sent"]["val"] == 12
