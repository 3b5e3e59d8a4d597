"""Requests to stop: by a signal, `run.max_minutes` or the end of a SLURM job. All ranks stop at the same point."""

import itertools
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import torch.distributed

from ..config import RunConfig
from ..console import STARTED
from ..distributed import World
from ..errors import ONE_SIGNAL_SECONDS, UserError

dist: Any = torch.distributed
"""The same module: it does not export its stores for type checkers."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""The last one comes when the terminal is closed."""
POLL_SECONDS = 0.5
"""How often a rank looks whether another one has a request."""
ANSWER_POLL_SECONDS = 0.02
"""How often it looks for the answers of the others, once there is one."""
ANSWER_SECONDS = 120.0
"""How long the ranks wait for each other to agree."""
NOTICE_SECONDS = 1.0
"""After how long it is said that the run is about to stop."""
SLURM_MARGIN_SECONDS = 120.0
"""How long before the end of a SLURM job the run stops."""

_runs = itertools.count()


class Requests:
    """Requests to stop the run or to save a checkpoint, which all ranks follow at the same point.

    Every rank passes the same points: the end of each step and of each validation batch. A thread takes the requests,
    so that passing a point costs nothing. When there is one, the threads of all ranks exchange how many points their
    rank has passed, and the run acts at the one after the last of these, which none of them has passed yet.
    """

    def __init__(
        self, cfg: RunConfig, save_minutes: float | None, world: World, end_now: Callable[[str], None]
    ) -> None:
        """`end_now` reports that a second signal, of the given name, ends the process."""
        self.world, self.end_now, self.save_minutes = world, end_now, save_minutes
        began = STARTED if world.owns_process else time.monotonic()
        self.deadline, self.limit = _deadline(cfg, began) if world.is_main else (math.inf, "")
        self.next_save = math.inf
        self.saved()
        self.points = 0
        """How many this rank has passed."""
        self.asked: dict[str, str] = {}
        """What this rank is to request: `stop` or `save`, each with a reason."""
        self.pending = False
        """Whether there is a request, of any rank."""
        self.agreed = threading.Event()
        """Set when these are known on all ranks: what is requested, and the point at which to follow."""
        self.found: dict[str, str] = {}
        self.target = self.round = 0
        self.first_signal, self.signals = 0.0, 0
        self.notice_at = math.inf
        self.handled: dict[int, Any] = {}
        self.terminals = [fd for fd in (1, 2) if os.isatty(fd)]
        self.former_fd = -1
        self.store: Any = None
        if world.world_size > 1:
            name = f"requests/{next(_runs)}"  # those of an earlier run in these processes are there as well
            self.store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())

    def __enter__(self) -> Self:
        self.wake, self.waker = socket.socketpair()
        self.waker.setblocking(False)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.handle_signals()
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self.former_fd)
        for number, handler in self.handled.items():
            signal.signal(number, handler)
        self.waker.shutdown(socket.SHUT_RDWR)  # a loader process may have it open, too
        self.waker.close()
        self.thread.join(2 * POLL_SECONDS)  # no longer, as a store may not answer
        if not self.thread.is_alive():
            self.wake.close()

    def handle_signals(self) -> None:
        """Take the signals that are not ignored; once more where a framework took them. Only a main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, self._handle):
                self.handled.setdefault(number, handler)
                signal.signal(number, self._handle)
        former = signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        self.former_fd = self.former_fd if former == self.waker.fileno() else former

    def _handle(self, number: int, frame: object) -> None:
        """Handle a signal in Python, which then writes its number to the thread: also while this thread waits in C.

        Raises:
            KeyboardInterrupt: it is the second one, and must not end the process.
        """
        self.signals += 1
        if self.signals > 1 and not self.world.owns_process:
            raise KeyboardInterrupt

    def saved(self) -> None:
        """Count the minutes to the next checkpoint from now."""
        if self.save_minutes is not None and self.world.is_main:
            self.next_save = time.monotonic() + 60 * self.save_minutes

    def due(self) -> dict[str, str]:
        """Pass a point; return what all ranks are to do there, and why.

        Raises:
            UserError: a rank does not answer.
        """
        self.points += 1
        if not self.pending:  # the thread sets it, and then reads `points`
            return {}
        if not self.agreed.wait(ANSWER_SECONDS):
            raise UserError(f"not all ranks agreed to stop within {ANSWER_SECONDS:.0f} s: resume the run")
        if self.points < self.target:
            return {}
        found = self.found
        self.agreed.clear()
        self.round += 1
        self.pending = False  # last, as the thread then begins another round
        return found

    def _watch(self) -> None:
        """Take signals, time limits and the requests of other ranks, until the run ends."""
        posted = -1
        while True:
            received: bytes | None = None
            self.wake.settimeout(self._timeout())
            with suppress(TimeoutError):
                received = self.wake.recv(64)
            if received == b"":
                return
            for number in filter(SIGNALS.__contains__, received or b""):  # Python handles others, which come here too
                self._take_signal(number)
            self._check_times()
            try:
                if not self.pending and (self.asked or self._is_known("asked")):
                    self._post()
                elif self.pending and posted != self.round and self._is_known(*range(self.world.world_size)):
                    posted = self.round
                    self._read_answers()
            except (RuntimeError, dist.DistError):  # the other ranks are gone: that ends this one, or a signal does
                self.store, self.asked, self.first_signal = None, {}, -math.inf
                self.deadline = self.next_save = math.inf

    def _timeout(self) -> float | None:
        """Return in how many seconds the thread has something to do besides taking signals."""
        waiting = self.pending and not self.agreed.is_set()
        poll = (ANSWER_POLL_SECONDS if waiting else POLL_SECONDS) if self.store or self.pending else math.inf
        moment = min(self.deadline, self.next_save, self.notice_at)
        seconds = min(poll, max(0.001, moment - time.monotonic()))  # 0 would mean not to wait at all
        return None if seconds == math.inf else seconds

    def _check_times(self) -> None:
        now = time.monotonic()
        if now > self.deadline:
            self.asked["stop"], self.deadline = self.limit, math.inf
        if now > self.next_save:
            self.asked["save"], self.next_save = "", math.inf
        if now > self.notice_at:
            self.notice_at = math.inf
            if self.world.is_main:
                with suppress(OSError):  # this thread is still needed
                    print("stopping after this step; a second signal ends the run at once", file=sys.stderr, flush=True)

    def _take_signal(self, number: int) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if number == signal.SIGHUP:
            self._leave_closed_terminals()
        if not self.first_signal:
            self.first_signal, self.notice_at = now, now + NOTICE_SECONDS
            self.asked["stop"] = name
        elif number == signal.SIGHUP or not self.world.owns_process:  # the shell and the system both send it
            return
        elif now > self.first_signal + ONE_SIGNAL_SECONDS * ("TORCHELASTIC_RUN_ID" in os.environ):
            telling = threading.Thread(target=self.end_now, args=(name,), daemon=True)
            telling.start()
            telling.join(NOTICE_SECONDS)  # a terminal may be stuck
            _kill_children()
            os._exit(128 + number)

    def _leave_closed_terminals(self) -> None:
        """Print to nowhere instead of a terminal that was closed: the error would end the run before it has saved."""
        for fd in self.terminals:
            if not os.isatty(fd):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, fd)
                os.close(nowhere)

    def _is_known(self, *names: object) -> bool:
        """Whether the ranks have exchanged values of these names in this round."""
        return bool(self.store.check([self._key(name) for name in names])) if self.store else self.pending

    def _post(self) -> None:
        """Tell the other ranks the first point at which this one may act."""
        self.pending = True
        lines = [str(self.points + 1), *(f"{kind} {reason}" for kind, reason in self.asked.items())]
        self.asked = {}
        if self.store:
            self.store.set(self._key("asked"), "")
            self.store.set(self._key(self.world.rank), "\n".join(lines))
        else:
            self._follow([lines])

    def _read_answers(self) -> None:
        if self.store:
            keys = [self._key(rank) for rank in range(self.world.world_size)]
            self._follow([self.store.get(key).decode().split("\n") for key in keys])

    def _follow(self, answers: Sequence[Sequence[str]]) -> None:
        self.target, self.found = max(int(point) for point, *_ in answers), {}
        for _, *asked in reversed(answers):
            self.found |= {line.partition(" ")[0]: line.partition(" ")[2] for line in asked}
        self.agreed.set()

    def _key(self, name: object) -> str:
        return f"{self.round}/{name}"


def _deadline(cfg: RunConfig, began: float) -> tuple[float, str]:
    """Return when a run that `began` is to stop, by the monotonic clock, and why."""
    if cfg.max_minutes is not None:
        return began + 60 * cfg.max_minutes, f"run.max_minutes={cfg.max_minutes:g}"
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    if not end.isdecimal():
        return math.inf, ""
    return time.monotonic() + int(end) - time.time() - SLURM_MARGIN_SECONDS, "the SLURM job's time limit"


def _kill_children() -> None:
    """Kill the loader processes, which would notice only after some seconds that this one is gone."""
    multiprocessing: Any = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        child.kill()
