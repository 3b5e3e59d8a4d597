"""A run that hangs is restarted to the same end."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from ..components.restart import Supervisor
from ..components.watchdog import Watchdog
from ..run import Run
from .support import equal, rows, state, train_here

ON = ["--watchdog.enabled=true", "--watchdog.hang_seconds=100"]
ON += ["--train.steps=8", "--train.eval_every=2", "--run.keep=9"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the signal handlers of this process, in which the supervisor sets its own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def test_run_that_hangs_is_restarted_to_the_same_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    handlers: None,
) -> None:
    train_here(tmp_path / "whole", *ON)
    source = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", source, prepend=os.pathsep)
    folder = tmp_path / "faulty"
    folder.mkdir()
    supervisor = Supervisor(folder / "first", [], 1)
    supervisor.command = [sys.executable, "-m", __name__, str(folder)]
    assert supervisor.run(1) == 0
    messages = capfd.readouterr().err
    assert "rank-0 hung" in messages
    assert "in _hang" in messages
    assert f"the ranks ended with status 1: {folder}/first starts again from step 4" in messages
    assert equal(state(folder), state(tmp_path / "whole"))
    assert rows(folder, "train") == rows(tmp_path / "whole", "train")


def _hang() -> None:
    time.sleep(1000)


def _train(folder: Path) -> None:
    """Train, and hang in the first attempt."""
    if (folder / "first/checkpoints").exists():
        train_here(folder, *ON)
        return
    arm = Watchdog.arm

    def arm_or_hang(watchdog: Watchdog, run: Run, factor: int) -> None:
        if run.step == 5:
            # longer than the limit, which no slow step exceeds, as it is shorter here only
            watchdog.limit = 1.0
            arm(watchdog, run, 1)
            _hang()
        arm(watchdog, run, factor)

    with mock.patch.object(Watchdog, "arm", arm_or_hang):
        train_here(folder, *ON)


if __name__ == "__main__":
    _train(Path(sys.argv[1]))
