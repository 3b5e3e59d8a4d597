"""The watchdog does not change the training."""

from pathlib import Path

from .support import rows, train_here


def test_training_does_not_change(tmp_path: Path) -> None:
    train_here(tmp_path / "on", "--watchdog.enabled=true")
    train_here(tmp_path / "off")
    assert rows(tmp_path / "on", "train") == rows(tmp_path / "off", "train")
    assert not list((tmp_path / "on/first").glob("stacks-*")), "no hang, no file"
