"""A run that was stopped by request continues as if it had not been."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ..config import Config
from ..console import say
from ..distributed import World
from ..errors import Stopped
from ..faults import interval, stop
from ..faults.stop import SIGNALS, Requests
from ..hooks import Hook
from ..train import train
from .conftest import read_rows, read_weights

POINTS = (0, 2, 11, 1, 20)
"""How many points a run passes before it stops, each time another number; one is more than a validation has."""


def test_run_stopped_again_and_again_equals_one_that_was_not(
    config: Callable[..., Config],
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    short_validation: None,
) -> None:
    """After a step, and in validations."""
    options = ["--train.steps=6", "--train.eval_every=2", "--log.every=4", "--train.ema=0.9", "--checkpoint.keep=99"]
    train(config("--run.name=whole", *options), world)
    due = Requests.due
    stops: list[str] = []
    signals = [number for number in SIGNALS if number != signal.SIGHUP]  # which nohup ignores

    def request(self: Requests) -> dict[str, str]:
        if self.points == POINTS[len(stops) % len(POINTS)]:
            os.kill(os.getpid(), signals[len(stops) % len(signals)])
            while not self.pending:
                time.sleep(0.001)
        return due(self)

    monkeypatch.setattr(Requests, "due", request)
    for _ in range(40):
        try:
            train(config("--run.name=cut", *options), world)
            break
        except Stopped as stopped:
            stops.append(str(stopped))
    assert len(stops) >= 3
    for number, line in enumerate(stops):
        name = signal.Signals(signals[number % len(signals)]).name
        assert line.endswith(f" ({name}); continue with --run.resume auto")
    for split in ("train", "val"):
        assert read_rows(tmp_path / "cut", split) == read_rows(tmp_path / "whole", split)
    ours, theirs = read_weights(tmp_path / "cut", 6), read_weights(tmp_path / "whole", 6)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_time_limit_and_the_end_of_a_job_stop_the_run(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped, match=r"^stopped at step \d+ \(run.max_minutes=0.0001\); continue with --run.resume"):
        train(config("--run.name=a", "--train.steps=100000", "--run.max_minutes=0.0001"), world)
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 120))
    with pytest.raises(Stopped, match=r"\(the SLURM job's time limit\); continue with --run.resume /"):
        train(config("--train.steps=100000"), world)
    with pytest.raises(Stopped, match="a range test keeps no checkpoint$"):
        train(config("--train.steps=100000", "--optim.schedule=range", "--run.name=b"), world)
    assert len(list(tmp_path.glob("*/checkpoints/step-*/manifest.json"))) == 2


def test_signal_ends_a_rank_at_once_when_the_others_are_gone(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With which it cannot agree."""
    ended: list[int] = []
    monkeypatch.setattr(stop, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", ended.append)
    requests = Requests(config().run, None, world, lambda _: None)
    requests.store = Mock(check=Mock(side_effect=RuntimeError("Connection reset by peer")))
    end = time.monotonic() + 10
    with requests:
        while requests.store is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert requests.due() == {}
        signal.raise_signal(signal.SIGTERM)
        while not ended and time.monotonic() < end:
            time.sleep(0.01)
    assert ended == [128 + signal.SIGTERM]


def test_ignored_signals_stay_ignored_and_others_get_their_handlers_back(
    config: Callable[..., Config], world: World
) -> None:
    """As `nohup` sets them."""
    before = [signal.getsignal(number) for number in SIGNALS]
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Requests(config().run, None, world, print) as requests:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.05)
            assert requests.due() == {}
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert [signal.getsignal(number) for number in SIGNALS if number != signal.SIGINT] == [before[0], *before[2:]]
    finally:
        signal.signal(signal.SIGINT, before[1])


def test_closed_terminal_stops_the_run(config: Callable[..., Config], world: World) -> None:
    """Its signal comes more than once, and it cannot be printed to: neither ends the run before it has saved."""
    before, (terminal, side) = signal.signal(signal.SIGHUP, signal.SIG_DFL), os.openpty()
    try:
        with Requests(config().run, None, world, print) as requests:
            requests.terminals = [side]
            os.close(terminal)
            with pytest.raises(OSError, match="put/output error"):
                os.write(side, b"a row of metrics")
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                while not requests.pending:
                    time.sleep(0.001)
                time.sleep(0.05)
            assert os.write(side, b"a row of metrics") == 16
            assert requests.due() == {"stop": "SIGHUP"}
    finally:
        os.close(side)
        signal.signal(signal.SIGHUP, before)


def test_pipe_that_nobody_reads_stops_the_run(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `| head`: it saves before it ends."""
    before, (reader, writer) = signal.signal(signal.SIGHUP, signal.SIG_DFL), os.pipe()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does at its start, and `--help` in another test undoes
    os.close(reader)
    try:
        with os.fdopen(writer, "w") as stream, Requests(config().run, None, world, print) as requests:
            monkeypatch.setattr("sys.stdout", stream)
            say("a row of metrics")
            while not requests.pending:
                time.sleep(0.001)
            say("the next one")
            assert requests.due() == {"stop": "SIGHUP"}
    finally:
        signal.signal(signal.SIGHUP, before)


def test_checkpoints_by_the_clock(config: Callable[..., Config], world: World, tmp_path: Path) -> None:
    """Between two rows of metrics too, which are the same as without."""
    options = ["--train.steps=12", "--train.eval_every=12", "--log.every=5", "--checkpoint.keep=99"]
    for name, more in (("a", []), ("b", ["--checkpoint.minutes=0.00001"])):
        train(config(f"--run.name={name}", *options, *more), world)
    saved = {name: len(list((tmp_path / name / "checkpoints").glob("step-*"))) for name in ("a", "b")}
    assert saved["a"] == 1
    assert saved["b"] > 1
    assert read_rows(tmp_path / "a", "train") == read_rows(tmp_path / "b", "train")


def test_checkpoint_between_rows_may_synchronize(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`debug.sync=error` forbids it from the start of a step, and would end the run without the checkpoint."""

    class Quiet(Hook):
        on = False

        def before_step(self, step: int) -> None:
            self.on = True

        def before_log(self) -> None:
            self.on = False

    quiet, saved, state = Quiet(), [], interval.state

    def read(*state_of: Any) -> dict[str, Any]:
        saved.append(quiet.on)
        return state(*state_of)

    monkeypatch.setattr(interval, "state", read)
    options = ["--run.name=a", "--train.steps=4", "--train.eval_every=4", "--log.every=4"]
    train(config(*options, "--checkpoint.minutes=0.00001"), world, [quiet])
    assert saved
    assert not any(saved)
