"""Notices that a run hangs: says which rank keeps the others waiting, keeps the stacks of all, and ends the processes.

Each rank records where it is (`Run.at`). A thread looks at that now and then, and writes it to a file for the other
ranks, `ranks/rank-<n>.json` in the run's folder, where the stacks will be, too: `ranks/stacks-rank-<n>-<pid>.txt`. Time
is counted in its own wake-ups, so that a process that was suspended, or a computer that slept, does not seem to hang.
"""

import faulthandler
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol, Self

import torch.distributed as dist

from ..console import shown
from ..contracts import Batch
from ..distributed import World
from ..errors import RESTART
from . import guard, hang_cause
from .hang_cause import Place

TICKS = 30
"""How often the thread wakes up within `run.hang_minutes`."""
FIRST = 4
"""What the limit is multiplied with for a first step, which may compile, and for the first batch of a validation."""
SOON = 10.0
"""With ticks of fewer seconds than this, the process that watches the thread is started before the first tick."""


class Watched(Protocol):
    """What of a run is watched."""

    place: Place
    folder: Path


class Counted:
    """Validation batches, of which each that is fetched counts as progress."""

    def __init__(self, batches: Iterable[Batch], run: Any) -> None:
        self.batches, self.run = batches, run

    def __iter__(self) -> Iterator[Batch]:
        step = self.run.progress.step
        self.run.place = (step, "validation", 0)
        for number, batch in enumerate(self.batches, 1):
            yield batch
            self.run.place = (step, "validation", number)


def watch(run: Watched, minutes: float | None, world: World) -> AbstractContextManager[Any]:
    """Tell the launcher, if one restarts this run, which folder it has; return the context that `minutes` ask for."""
    report = os.environ.get("LAUNCH_DIR")
    if report and os.environ.get("LOCAL_RANK", "0") == "0":
        (Path(report) / "run").write_text(str(run.folder.resolve()), encoding="utf-8")
    return Heartbeat(run, world, minutes) if minutes is not None and world.owns_process else nullcontext()


class Heartbeat:
    """Watches one rank while it is entered, and ends the process with status `RESTART` if it hangs."""

    def __init__(self, run: Watched, world: World, minutes: float) -> None:
        self.run, self.world, self.limit = run, world, 60 * minutes
        self.tick, self.first_step = self.limit / TICKS, run.place[0]
        self.folder = run.folder / "ranks"
        self.parent = os.getppid()
        self.ended = threading.Event()
        self.stacks: IO[str] | None = None
        self.guard: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        if self.world.world_size > 1:  # a collective gives up later than this does, which says why
            limit = timedelta(seconds=(FIRST + 1) * self.limit)
            public = getattr(dist, "set_timeout", None)  # of newer torch, which warns of the other one
            (public or dist.distributed_c10d._set_pg_timeout)(limit, dist.group.WORLD)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join(1.0)  # not for a file system that hangs
        faulthandler.cancel_dump_traceback_later()
        self._end_guard()
        if self.stacks is not None:
            with suppress(OSError):
                self.stacks.close()
                Path(self.stacks.name).unlink()
                self._file(self.world.rank).unlink(missing_ok=True)
                self.folder.rmdir()  # by the last rank

    def _watch(self) -> None:
        with suppress(OSError):
            self._remove_old()
        if self.tick < SOON:
            self._arm()
            self._write(self.run.place)
        silent, last = 0, self.run.place
        while not self.ended.wait(self.tick):
            self._arm()
            place = self.run.place
            silent, last = (silent + 1, last) if place is last else (0, place)
            if silent == 0 or not self._file(self.world.rank).exists():
                self._write(place)
            if os.getppid() != self.parent and "LAUNCH_DIR" in os.environ:  # the launcher was killed
                self._exit()
            slow = place[0] == self.first_step or place[1:] == ("validation", 0)
            if silent >= TICKS * (FIRST if slow else 1) and not _in_debugger():
                self._report(place)

    def _arm(self) -> None:
        """Have the stacks dumped, and then the process killed, if this thread cannot run: Python's lock is held."""
        if self.stacks is None:
            with suppress(OSError):
                self.folder.mkdir(exist_ok=True)
                file = self.folder / f"stacks-rank-{self.world.rank}-{os.getpid()}.txt"
                self.stacks = file.open("w", encoding="utf-8")
        if self.stacks is not None:
            self.stacks.truncate(0)  # dumped when the process continued after it was stopped
            faulthandler.dump_traceback_later(self.limit, file=self.stacks)
        if self.guard is None and sys.platform == "linux":
            text = f"no progress for {_duration(self.limit)}: {self._name(self.world.rank)} holds Python's lock"
            command = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(self.limit + 6 * self.tick)]
            self.guard = subprocess.Popen([*command, f"error: {text}{self._ending()}"], stdin=subprocess.PIPE)
        self._beat()

    def _beat(self) -> None:
        """Tell the guard that this thread runs."""
        if self.guard is not None and self.guard.stdin is not None:
            with suppress(OSError):
                os.write(self.guard.stdin.fileno(), b".")

    def _end_guard(self) -> None:
        if self.guard is not None and self.guard.stdin is not None:
            self.guard.kill()  # it would not see that the pipe is closed, which loader workers have open, too
            self.guard.stdin.close()
            self.guard.wait()
            self.guard = None

    def _report(self, place: Place) -> NoReturn:
        """Dump the stacks of this rank, wait until the others have done so too, say what is wrong, and exit."""
        faulthandler.cancel_dump_traceback_later()
        if self.stacks is not None:
            self.stacks.truncate(0)
            faulthandler.dump_traceback(self.stacks)
        self._write(place, hangs=True)
        others = set(range(self.world.world_size)) - {self.world.rank}
        poll = min(self.tick / 20, 0.2)
        for _ in range(round(3 * self.tick / poll)):  # the ticks of the others come up to one later
            states = {rank: self._read(rank) for rank in others}
            if all(state.get("hangs") or hang_cause.trouble(state) for state in states.values()):
                break
            self._beat()
            time.sleep(poll)
        states[self.world.rank] = self._read(self.world.rank) or self._state(place, hangs=True)
        reports = self.world.rank == min(rank for rank, state in states.items() if state.get("hangs"))
        if reports:
            text = f"error: no progress for {_duration(self.limit)}: {hang_cause.describe(states)}{self._ending()}"
            with suppress(OSError):
                print(text, file=sys.stderr, flush=True)
        self._end_guard()
        time.sleep(0.2 if reports else 1.0)  # the launcher ends all soon after the first
        self._exit()

    def _state(self, place: Place, hangs: bool) -> dict[str, Any]:
        return {"pid": os.getpid(), "host": socket.gethostname(), "place": place, "hangs": hangs}

    def _write(self, place: Place, hangs: bool = False) -> None:
        partial = self._file(self.world.rank).with_suffix(".partial")
        with suppress(OSError):  # a full disk is reported by what the run itself writes
            partial.write_text(json.dumps(self._state(place, hangs)), encoding="utf-8")
            partial.replace(self._file(self.world.rank))

    def _read(self, rank: int) -> dict[str, Any]:
        try:
            return dict(json.loads(self._file(rank).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def _remove_old(self) -> None:
        """Remove what a process that was killed has left; stacks are kept."""
        self._file(self.world.rank).unlink(missing_ok=True)
        for file in self.folder.glob(f"stacks-rank-{self.world.rank}-*.txt"):
            if file.stat().st_size == 0:
                file.unlink()

    def _name(self, rank: int) -> str:
        return f"rank {rank}" if self.world.world_size > 1 else "the run"

    def _ending(self) -> str:
        return f"; the stacks are in {shown(self.folder)}"

    def _exit(self) -> NoReturn:
        for child in multiprocessing.active_children():  # loader workers would notice it after some seconds
            child.kill()
        os._exit(RESTART)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _in_debugger() -> bool:
    """Whether the main thread is in a debugger, where it may wait for you."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("bdb", "pdb", "debugpy", "IPython"):
            return True
        frame = frame.f_back
    return False
