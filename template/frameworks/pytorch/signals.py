"""Requests to stop a run: Ctrl-C, SIGTERM, SIGUSR1 and a time limit."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .distributed import World
from .errors import second_signal_ends


class StopRequests:
    """Whether to stop now, as a signal asks for it or the time is over."""

    def __init__(self, world: World, hours: float | None = None) -> None:
        self.world = world
        self.is_requested = False
        # set by a launcher, which may start the ranks again
        started = float(os.environ.get("RUN_STARTED", time.time()))
        self.deadline = started + 3600 * hours if hours else math.inf

    def should_stop(self) -> bool:
        """Return whether to stop now: the same on all ranks, which call it after each step."""
        requested = self.is_requested or time.time() >= self.deadline
        if self.world.size == 1:
            return requested
        return bool(self.world.all_reduce(torch.tensor(float(requested))))

    def request(self, *_: object) -> None:
        """Handle a signal."""
        self.is_requested = True


@contextmanager
def stop_requests(world: World, hours: float | None = None) -> Iterator[StopRequests]:
    """In the context, a signal only sets a flag, which the ranks share after each step.

    A second Ctrl-C or SIGTERM, more than two seconds after the first, ends the process.
    """
    requests = StopRequests(world, hours)
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # no other can handle signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            handlers[number] = signal.signal(number, requests.request)
    try:
        with second_signal_ends():
            yield requests
    finally:
        for number, handler in handlers.items():
            # a launcher may send one again; a second Ctrl-C still ends the process
            is_repeated = requests.is_requested and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if is_repeated else handler)
