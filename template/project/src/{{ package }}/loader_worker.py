"""What only loader workers need: signals do not end them, and the error of one that ended is explained."""

import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.util import Finalize

import torch
from torch import Tensor

from .contracts import Batch
from .errors import RestartError, UserError

IGNORED = ("SIGINT", "SIGUSR1", "SIGHUP")
_watched: weakref.WeakSet[Iterator[Batch]] = weakref.WeakSet()

MORE_SHARED_MEMORY = "enlarge /dev/shm (docker run --shm-size), or use fewer loader.workers or a smaller micro_batch"
WAYS_OUT = {
    "SIGKILL": "as happens when memory runs out: use fewer loader.workers, or ask for more memory, then resume",
    "SIGBUS": f"as happens when shared memory runs out: {MORE_SHARED_MEMORY}, then resume",
    "SIGSEGV": "in native code of the data set: loader.workers=0 shows where (python -X faulthandler)",
}


def initializer() -> Callable[[int], None]:
    """Return the function that each worker of a DataLoader calls first."""
    ending = torch.zeros(1, dtype=torch.uint8).share_memory_()
    Finalize(None, ending.fill_, args=(1,), exitpriority=1)  # before multiprocessing ends the workers, by SIGTERM
    return partial(_begin, ending)


def _begin(ending: Tensor, _: int) -> None:
    """Ignore the signals by which a run is asked to stop, which a terminal or launcher sends to all processes.

    The training process needs its workers until it has saved. They end with it; if it is killed, within 5 s.
    """
    signal.set_wakeup_fd(-1)  # a fork has that of the training process
    for name in IGNORED:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if ending.item() else None)


def watched(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Return the iterator of a DataLoader, whose workers `explained` will look at.

    torch would raise the error about a worker that was killed anywhere, even while a checkpoint is saved. Instead, it
    is noticed by who waits for the next batch, within 5 s.
    """
    _watched.add(batches)
    handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    if (
        getattr(handler, "__module__", "").startswith("torch.")
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return batches


@contextmanager
def ended_workers() -> Iterator[None]:
    """End the workers that begin in this context, if its end is not that of the process.

    The garbage collector closes their queues before it tells them to end, and then waits 10 s for each.
    """
    before = {*_watched}
    try:
        yield
    finally:
        for batches in {*_watched} - before:
            batches._shutdown_workers()  # type: ignore[attr-defined]


def explained(error: Exception) -> Exception:
    """Return an error that says how a loader worker ended, if that is where the error comes from; else the error."""
    seconds = 1.0 if "DataLoader worker (pid" in str(error) or isinstance(error, EOFError | ConnectionError) else 0.0
    ended = _ended(time.monotonic() + seconds)
    if ended is not None and ended[1] > 0:
        return UserError(
            f"loader worker {ended[0]} exited with status {ended[1]}, by the code of the data set: "
            "loader.workers=0 shows where"
        )
    if ended is not None:
        name = signal.Signals(-ended[1]).name
        way_out = WAYS_OUT.get(name, "which another program has sent: resume")
        return RestartError(f"loader worker {ended[0]} was ended by {name}, {way_out}")
    if re.search(r"unable to .*(</torch_|shared memory)|shm_open", str(error)):
        return UserError(f"the loader workers have too little shared memory: {MORE_SHARED_MEMORY}, then resume")
    return error


def _ended(deadline: float) -> tuple[int, int] | None:
    """Return the process id and exit code of a worker that did not end by itself; it may need some time to end."""
    while _watched:
        for worker in (worker for batches in _watched for worker in getattr(batches, "_workers", ())):
            if worker.exitcode:
                return worker.pid, worker.exitcode
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return None
