"""A run that was killed and that hung is restarted to the same end; training does not change."""

import os
import signal
import sys
import time
from pathlib import Path

from ..components.restart import Supervisor
from .support import at_step, equal, rows, run_program, state, train_here

ON = ("--restart.enabled=true", "--restart.hang_seconds=1", "--train.steps=8", "--train.eval_every=2", "--run.keep=9")


def test_training_does_not_change(tmp_path: Path) -> None:
    train_here(tmp_path / "on", *ON, "--restart.hang_seconds=100")
    train_here(tmp_path / "off", *ON, "--restart.enabled=false")
    assert equal(state(tmp_path / "on")["model"], state(tmp_path / "off")["model"])
    assert rows(tmp_path / "on", "train") == rows(tmp_path / "off", "train")
    assert not list((tmp_path / "on/first").glob("stacks-*")), "no hang, no file"


def test_run_that_is_killed_and_hangs_is_restarted_to_the_same_end(tmp_path: Path) -> None:
    train_here(tmp_path / "whole", *ON, "--restart.hang_seconds=100")
    run_program("test_restart", "supervise", tmp_path / "faulty")
    assert equal(state(tmp_path / "faulty"), state(tmp_path / "whole"))
    assert rows(tmp_path / "faulty", "train") == rows(tmp_path / "whole", "train")
    assert rows(tmp_path / "faulty", "val") == rows(tmp_path / "whole", "val")
    said = (tmp_path / "faulty/said.txt").read_text()
    assert "the ranks ended with status -9" in said
    assert "starts again from step 2" in said
    assert "rank-0 hung" in said
    assert "in _sleep" in said
    assert "the ranks ended with status 1" in said
    assert "starts again from step 6" in said
    assert not list((tmp_path / "faulty/first").glob("stacks-*"))


def _supervise(folder: Path) -> int:
    folder.mkdir()
    sys.stderr = (folder / "said.txt").open("w")
    supervisor = Supervisor(folder / "first", [], 1)
    supervisor.command = [sys.executable, "-m", __spec__.name, "worker", str(folder)]
    return supervisor.run(0)


def _sleep(_: object) -> None:
    time.sleep(100)


def _train(folder: Path) -> None:
    """Train, and be killed in the first attempt, and hang in the second one."""
    actions = [(3, lambda _: os.kill(os.getpid(), signal.SIGKILL)), (7, _sleep), (9, _sleep)]
    attempt = len(list(folder.glob("attempt-*")))
    (folder / f"attempt-{attempt}").touch()
    with at_step(*actions[attempt]):
        train_here(folder, *ON)


if __name__ == "__main__":
    if sys.argv[1] == "supervise":
        raise SystemExit(_supervise(Path(sys.argv[2])))
    _train(Path(sys.argv[2]))
