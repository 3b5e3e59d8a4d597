"""Requests to stop a run: Ctrl-C, SIGTERM, SIGUSR1 and a time limit."""

import math
import signal
import threading
import time
from typing import Any, Self

import torch

from .distributed import World


class StopRequests:
    """In the context, a signal only sets a flag, which the ranks share after each step."""

    def __init__(
        self,
        world: World,
        hours: float | None = None,
    ) -> None:
        self.world = world
        self.requested = False
        self.deadline = time.monotonic() + 3600 * hours if hours else math.inf
        self.handlers: dict[int, Any] = {}

    def should_stop(self) -> bool:
        """Return whether to stop now: the same on all ranks, which call it after each step."""
        requested = self.requested or time.monotonic() > self.deadline
        if self.world.size == 1:
            return requested
        return bool(self.world.all_reduce(torch.tensor(float(requested))))

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other can handle signals
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                self.handlers[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _request(self, *_: object) -> None:
        self.requested = True
