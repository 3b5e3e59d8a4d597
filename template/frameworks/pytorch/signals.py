"""Requests to stop a run: Ctrl-C, SIGTERM, SIGUSR1 and a time limit; and waits without an end."""

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import torch

from .distributed import World
from .errors import Stopped, kill_workers
from .loader import Loader

SAME_S = 2.0
"""A signal within these seconds of the first one is the same, which a launcher has passed on."""
END = 0
"""No signal's number: ends the thread."""
PATIENCE_S = 10.0
"""A stop request waits so long for a batch."""


class StopRequests:
    """In the context, a signal only sets a flag, which the ranks share after each step.

    A thread sees what the main thread cannot while it waits for a batch, a device or other ranks:
    a second Ctrl-C or SIGTERM ends the process at once, and a loader that stalls is named.
    """

    def __init__(
        self,
        world: World,
        hours: float | None = None,
        stall_seconds: float = math.inf,
        loaders: Sequence[Loader] = (),
    ) -> None:
        self.world = world
        self.requested_at = math.inf
        self.gives_up = False
        self.deadline = time.monotonic() + 3600 * hours if hours else math.inf
        self.stall_seconds = stall_seconds
        self.next_notice = stall_seconds
        self.loaders = loaders
        self.handlers: dict[int, Any] = {}

    def should_stop(self) -> bool:
        """Return whether to stop now: the same on all ranks, which call it after each step."""
        requested = time.monotonic() >= min(self.requested_at, self.deadline)
        if self.world.size == 1:
            return requested
        return bool(self.world.all_reduce(torch.tensor(float(requested))))

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other can handle signals
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                self.handlers[number] = signal.signal(number, self._request)
            self.reader, self.writer = os.pipe()
            os.set_blocking(self.writer, False)
            self.old_writer = signal.set_wakeup_fd(self.writer)
            self.thread = threading.Thread(target=self._watch, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        if self.handlers:
            signal.set_wakeup_fd(self.old_writer)
            os.write(self.writer, bytes([END]))
            self.thread.join()
            os.close(self.writer)
            os.close(self.reader)

    def _request(self, *_: object) -> None:
        self.requested_at = min(self.requested_at, time.monotonic())
        if self.gives_up and self._waiting_since() is not None:
            kill_workers()
            raise Stopped("stopped while no batch came: resume from the last checkpoint")

    def _waiting_since(self) -> float | None:
        """Return when the main thread began to wait for a batch; None if it does not."""
        since = (loader.waiting_since for loader in self.loaders)
        return next((moment for moment in since if moment is not None), None)

    def _watch(self) -> None:
        """Read the numbers of signals from the pipe, and look at the loaders once per second."""
        first: dict[int, float] = {}
        while True:
            ready = select.select([self.reader], [], [], 1.0)[0]
            for number in os.read(self.reader, 64) if ready else b"":
                if number == END:
                    return
                if number in (signal.SIGINT, signal.SIGTERM):
                    now = time.monotonic()
                    if now - first.setdefault(number, now) > SAME_S:
                        kill_workers()
                        os._exit(128 + number)  # as if the signal had ended it
            self._watch_loaders()

    def _watch_loaders(self) -> None:
        """Name a loader that stalls; if a stop is requested, wake the main thread."""
        now = time.monotonic()
        since = self._waiting_since()
        if since is None:
            self.next_notice = self.stall_seconds
            return
        if now - since >= self.next_notice:
            rank = f"rank {self.world.rank}: " if self.world.size > 1 else ""
            slow = "is the disk or network of the data slow or gone?"
            print(f"{rank}no batch for {now - since:,.0f} s: {slow}", file=sys.stderr, flush=True)
            self.next_notice *= 2
        asked = max(since, min(self.requested_at, self.deadline))
        if self.world.size == 1 and now - asked > PATIENCE_S:  # no other rank waits for this one
            self.gives_up = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
