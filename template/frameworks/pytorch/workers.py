"""The worker processes of a loader: stop requests, shared memory, and their end."""

import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any

import torch

from .errors import MORE_SHARED_MEMORY, UserError

SHARED_MEMORY = "/dev/shm"  # noqa: S108


def init_worker(_: int) -> None:
    """Let a worker outlive the signals that ask to stop, until the main process has saved."""
    signal.set_wakeup_fd(-1)  # the main process's
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(30))  # seconds
    # else the batch is lost, and the main process waits for it for ever
    setattr(Queue, "_on_queue_feeder_error", staticmethod(_end_worker))  # noqa: B010


def _end_worker(error: Exception, _: object) -> None:
    reason = " ".join(str(error).split())
    print(f"a worker cannot pass its batch on: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


@contextmanager
def killed_after(seconds: float, processes: Collection[BaseProcess]) -> Iterator[None]:
    """In the context, which waits for processes to end, kill those that still run after a while."""
    timer = threading.Timer(seconds, _kill, [processes])
    timer.daemon = True
    timer.start()
    old = signal.getsignal(signal.SIGCHLD)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else torch raises an error for each
    try:
        yield
    finally:
        timer.cancel()
        if is_main:
            signal.signal(signal.SIGCHLD, old)


def _kill(processes: Collection[BaseProcess]) -> None:
    for process in processes:
        process.kill()


def check_shared_memory(batch: Any, workers: int, prefetch_factor: int) -> None:
    """Refuse workers whose prefetched batches do not fit into /dev/shm; Docker's has 64 MB."""
    needed = workers * prefetch_factor * _bytes(batch)
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:  # not Linux
        return
    size = found.f_blocks * found.f_frsize
    if needed > size:
        batches = f"{workers} workers x {prefetch_factor} batches need {needed / 1e6:,.1f} MB"
        raise UserError(
            f"{SHARED_MEMORY} has {size / 1e6:,.1f} MB, but {batches}: {MORE_SHARED_MEMORY}"
        )


def _bytes(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    parts = batch.values() if isinstance(batch, dict) else batch
    return sum(map(_bytes, parts)) if isinstance(batch, dict | list | tuple) else 0
