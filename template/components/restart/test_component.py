"""A run that hangs is restarted to the same end; training does not change."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..components.restart import Supervisor
from .support import at_step, equal, rows, state, train_here

ON = ("--restart.enabled=true", "--restart.hang_seconds=3", "--train.steps=8", "--train.eval_every=2", "--run.keep=9")


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the signal handlers of this process, in which the supervisor sets its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_training_does_not_change(tmp_path: Path) -> None:
    train_here(tmp_path / "on", *ON, "--restart.hang_seconds=100")
    train_here(tmp_path / "off", *ON, "--restart.enabled=false")
    assert equal(state(tmp_path / "on")["model"], state(tmp_path / "off")["model"])
    assert rows(tmp_path / "on", "train") == rows(tmp_path / "off", "train")
    assert not list((tmp_path / "on/first").glob("stacks-*")), "no hang, no file"


def test_run_that_hangs_is_restarted_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], handlers: None
) -> None:
    train_here(tmp_path / "whole", *ON, "--restart.hang_seconds=100")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    folder = tmp_path / "faulty"
    folder.mkdir()
    supervisor = Supervisor(folder / "first", [], 1)
    supervisor.command = [sys.executable, "-m", __name__, str(folder)]
    assert supervisor.run(1) == 0
    said = capfd.readouterr().err
    assert "rank-0 hung" in said
    assert "in _sleep" in said
    assert f"the ranks ended with status 1: {folder}/first starts again from step 4" in said
    assert not list(folder.glob("first/stacks-*"))
    assert equal(state(folder), state(tmp_path / "whole"))
    assert rows(folder, "train") == rows(tmp_path / "whole", "train")
    assert rows(folder, "val") == rows(tmp_path / "whole", "val")


def _sleep(_: object) -> None:
    time.sleep(100)


def _train(folder: Path) -> None:
    """Train, and hang in the first attempt."""
    first = not (folder / "first/checkpoints").exists()
    with at_step(5 if first else 99, _sleep):
        train_here(folder, *ON)


if __name__ == "__main__":
    _train(Path(sys.argv[1]))
