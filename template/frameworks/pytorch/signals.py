"""Requests to stop a run: Ctrl-C, SIGTERM, SIGUSR1 and a time limit."""

import math
import os
import signal
import threading
import time
from typing import Any, Self

import torch

from .distributed import World
from .errors import kill_workers

SAME_S = 2.0
"""A signal within these seconds of the first one is the same, which a launcher has passed on."""
END = 0
"""No signal's number: ends the thread."""


class StopRequests:
    """In the context, a signal only sets a flag, which the ranks share after each step.

    A second Ctrl-C or SIGTERM ends the process at once: a thread sees it also while the main thread
    waits for a device or other ranks.
    """

    def __init__(self, world: World, hours: float | None = None) -> None:
        self.world = world
        self.is_requested = False
        # of the first start, if a launcher starts the ranks again
        started = float(os.environ.get("RUN_STARTED", time.time()))
        self.deadline = started + 3600 * hours if hours else math.inf
        self.handlers: dict[int, Any] = {}

    def should_stop(self) -> bool:
        """Return whether to stop now: the same on all ranks, which call it after each step."""
        requested = self.is_requested or time.time() >= self.deadline
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
            # a launcher may send one again; a second Ctrl-C still ends the process
            is_repeated = self.is_requested and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if is_repeated else handler)
        if self.handlers:
            signal.set_wakeup_fd(self.old_writer)
            os.write(self.writer, bytes([END]))
            self.thread.join()
            os.close(self.writer)
            os.close(self.reader)

    def _request(self, *_: object) -> None:
        self.is_requested = True

    def _watch(self) -> None:
        """Read the numbers of signals from the pipe."""
        first: dict[int, float] = {}
        while (number := os.read(self.reader, 1)[0]) != END:
            now = time.monotonic()
            is_second = now - first.setdefault(number, now) > SAME_S
            if is_second and number in (signal.SIGINT, signal.SIGTERM):
                kill_workers()
                os._exit(128 + number)  # as if the signal had ended it
