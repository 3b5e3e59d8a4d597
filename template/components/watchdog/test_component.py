"""The watchdog does not change the training."""

from pathlib import Path

from .support import equal, rows, state, train_here


def test_training_does_not_change(tmp_path: Path) -> None:
    train_here(tmp_path / "on", "--watchdog.enabled=true")
    train_here(tmp_path / "off")
    assert equal(state(tmp_path / "on")["model"], state(tmp_path / "off")["model"])
    assert rows(tmp_path / "on", "train") == rows(tmp_path / "off", "train")
    assert not list((tmp_path / "on/first").glob("stacks-*")), "no hang, no file"
