"""A rank that hangs is noticed and named; one that waits with good reason is not."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ..config import Config
from ..distributed import World
from ..faults import hang_cause
from ..faults.heartbeat import FIRST, TICKS, Heartbeat
from ..faults.stragglers import Stragglers
from ..phase_times import PhaseTimes
from ..run import Run
from ..train import train

LIMIT = 0.3
"""Seconds."""

Watched = Callable[..., Heartbeat]


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ranks that have ended; here, only their threads do."""
    ended: list[int] = []

    def exit(self: Heartbeat) -> None:
        ended.append(self.world.rank)
        self.ended.set()

    monkeypatch.setattr(Heartbeat, "_exit", exit)
    monkeypatch.setattr(dist, "set_timeout", lambda limit, group: None, raising=False)
    return ended


@pytest.fixture
def watched(tmp_path: Path, exits: list[int]) -> Iterator[Watched]:
    """Watch a rank that is at a place after its first step."""
    entered: list[Heartbeat] = []

    def start(place: hang_cause.Place, rank: int = 0, ranks: int = 1, first_step: int = 0) -> Heartbeat:
        run = SimpleNamespace(place=(first_step, "saving", 0), folder=tmp_path)
        found = Heartbeat(run, World(rank, ranks, torch.device("cpu")), LIMIT / 60)
        run.place = place
        entered.append(found.__enter__())
        return found

    yield start
    for it in entered:
        it.__exit__()


def seconds_until(exits: list[int], number: int) -> float:
    start = time.monotonic()
    while len(exits) < number:
        assert time.monotonic() < start + 30
        time.sleep(0.01)
    return time.monotonic() - start


def test_rank_that_keeps_the_others_waiting_is_named(
    watched: Watched, exits: list[int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for rank, phase in enumerate(("optimizer step", "fetching a batch", "forward and backward")):
        watched((7, phase, 0), rank, 3)
    seconds_until(exits, 3)
    cause = "rank 1 is furthest behind, at step 7 (fetching a batch); rank 0 waits at step 7 (optimizer step)"
    assert capsys.readouterr().err == f"error: no progress for 0.3 s: {cause}; the stacks are in {tmp_path}/ranks\n"
    stacks = list(tmp_path.glob("ranks/stacks-*.txt"))
    assert len(stacks) == 3
    assert all("in seconds_until" in file.read_text() for file in stacks)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the states of processes are read from /proc")
@pytest.mark.parametrize("end", ["stopped", "killed", "silent"])
def test_rank_that_cannot_go_on_is_named(
    watched: Watched, exits: list[int], capsys: pytest.CaptureFixture[str], tmp_path: Path, end: str
) -> None:
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "kill -STOP $$"] if end == "stopped" else ["sh", "-c", ":"], {})
    if end != "stopped":
        os.waitpid(pid, 0)
    try:
        other = watched((7, "optimizer step", 0), 1, 2)
        other.__exit__()
        state = other._state((7, "saving", 0), hangs=False) | {"pid": pid}
        state |= {"host": "elsewhere"} if end == "silent" else {}
        (tmp_path / "ranks").mkdir(exist_ok=True)
        (tmp_path / "ranks/rank-1.json").write_text(json.dumps(state))
        watched((7, "optimizer step", 0), 0, 2)
        seconds_until(exits, 1)
    finally:
        if end == "stopped":
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    why = {"stopped": "is stopped by a signal", "killed": "has ended", "silent": "does not respond"}[end]
    said = capsys.readouterr().err
    assert f"rank 1 {why}" in said
    assert "last seen at step 7 (saving)" in said


def test_progress_and_first_steps_are_no_hang(watched: Watched, exits: list[int], tmp_path: Path) -> None:
    going, first = watched((7, "validation", 0)), watched((3, "forward and backward", 0), first_step=3)
    start = time.monotonic()
    while time.monotonic() < start + 2 * LIMIT:
        going.run.place = (7, "validation", int(100 * time.monotonic()))
        time.sleep(LIMIT / TICKS)
    assert exits == []
    going.__exit__()
    seconds_until(exits, 1)
    assert time.monotonic() - start > FIRST * LIMIT
    first.__exit__()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process watches")
def test_end_does_not_wait_for_loader_workers(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which have inherited the pipe to the process that watches this one."""
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 10)
    ending = watched((7, "saving", 0))
    while ending.guard is None:
        time.sleep(0.01)
    assert ending.guard.stdin is not None
    pipe = ending.guard.stdin.fileno()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[pipe]) as worker:
        start = time.monotonic()
        ending.__exit__()
        assert time.monotonic() < start + 5
        worker.kill()


@pytest.mark.parametrize("newer", [True, False])
def test_collectives_give_up_later(monkeypatch: pytest.MonkeyPatch, watched: Watched, newer: bool) -> None:
    """By the public function where torch has it, as the other one warns there."""
    limits: list[float] = []

    def set_timeout(limit: timedelta, group: object) -> None:
        limits.append(limit.total_seconds())

    def old(limit: timedelta, group: object) -> None:
        assert not newer
        set_timeout(limit, group)

    monkeypatch.setattr(dist, "set_timeout", set_timeout if newer else None, raising=False)
    monkeypatch.setattr(dist.distributed_c10d, "_set_pg_timeout", old)
    watched((7, "saving", 0), 0, 2)
    assert limits == [pytest.approx((FIRST + 1) * LIMIT)]


def test_debugger_is_no_hang(watched: Watched, exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", "pdb")
    waiting = watched((7, "saving", 0))
    time.sleep(2 * LIMIT)
    waiting.__exit__()
    assert exits == []


def test_run_tells_where_it_is_and_leaves_nothing(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places: list[Any] = []
    at = Run.at

    def note(self: Run, phase: str) -> None:
        at(self, phase)
        places.append(self.place)

    monkeypatch.setattr(Run, "at", note)
    cfg = config("--train.steps=2", "--train.eval_every=2", "--log.every=1", "--run.hang_minutes=1", "--run.name=run")
    train(cfg, world)
    order = [phase for step, phase, _ in places if step == 2]
    assert [phase for phase in order if phase != "fetching a batch"] == ["logging", "saving"]
    assert {"forward and backward", "optimizer step"} <= {phase for step, phase, _ in places if step == 1}
    assert not (tmp_path / "run/ranks").exists()


def test_slowest_rank_is_that_with_most_time_outside_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    net = torch.nn.Linear(2, 1)
    times = PhaseTimes()
    measured = Stragglers(net, World(1, 2, torch.device("cpu")), times)
    for phase, after in (("fetching a batch", 3), ("forward and backward", 2), ("", 0), ("fetching a batch", 0)):
        if phase:
            measured.at(phase)
        else:
            net(torch.ones(1, 2)).sum().backward()  # what follows is a collective
            clock[0] += 50
        clock[0] += after
    seconds = measured.read()
    assert (seconds, measured.read()) == (5.0, 0.0)
    row = {"loss": 1.0, "rank 0": 1.0, "rank 1": seconds}
    measured.name_slowest(row)
    assert row == {"loss": 1.0, "slowest_rank": 1, "slowest_rank_share": pytest.approx(2 / 3)}
    assert "communication" not in times.seconds, "which gradient is the last is known after the first step"
    times.begin("backward")
    net(torch.ones(1, 2)).sum().backward()
    clock[0] += 7
    times.begin("other")
    assert (times.seconds["backward"], times.seconds["communication"]) == (0.0, 7.0)
