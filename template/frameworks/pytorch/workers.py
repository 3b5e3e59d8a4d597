"""The worker processes of a loader: stop requests, and shared memory; a time limit for batches."""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.data import get_worker_info

from .errors import MORE_SHARED_MEMORY, SLOW_LOADER, UserError, kill_workers, report

SHARED_MEMORY = "/dev/shm"  # noqa: S108


def limit_time(batches: Iterable[Any], seconds: float) -> Iterator[Any]:
    """Yield batches, and end the process if one takes longer than these seconds.

    A thread ends it, as the main thread cannot while it waits for a file. It counts seconds, as a
    clock goes on while a scheduler suspends the process. DataLoader has the same limit for its
    worker processes, and its error usually comes first.
    """
    awaited: int | None = None
    is_over = threading.Event()

    def watch() -> None:
        before = None
        waited = 0.0
        while not is_over.wait(1.0):
            waited = waited + 1.0 if awaited == before else 0.0
            before = awaited
            if awaited is not None and waited > seconds + 1.0:
                status = report(f"no batch was loaded within {seconds:g} seconds: {SLOW_LOADER}")
                sys.stdout.flush()
                kill_workers()
                os._exit(status)

    threading.Thread(target=watch, daemon=True).start()
    try:
        awaited = 0
        for number, batch in enumerate(batches, start=1):
            awaited = None
            yield batch
            awaited = number
    finally:
        is_over.set()


def init_worker(_: int) -> None:
    """Let a worker outlive the signals that ask to stop, as the main process saves first."""
    signal.set_wakeup_fd(-1)  # the main process's
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def to_shared_memory(collate: Callable[[Any], Any], prefetch_factor: int) -> Callable[[Any], Any]:
    """Return a `collate_fn` that moves a worker's batch to shared memory.

    Else a thread does that, and an error there loses the batch: the main process would wait for it.
    """
    return partial(_collate_and_share, collate, prefetch_factor)


def _collate_and_share(
    collate: Callable[[Any], Any],
    prefetch_factor: int,
    samples: Any,
) -> Any:
    batch = collate(samples)
    worker = get_worker_info()
    if worker is None:
        return batch
    check_shared_memory(batch, worker.num_workers * prefetch_factor)
    try:
        for part in _parts(batch):
            if isinstance(part, Tensor):
                part.share_memory_()
            else:
                pickle.dumps(part)
    except Exception as error:  # torch and pickle raise many kinds
        reason = " ".join(str(error).split())
        raise UserError(
            f"a loader worker cannot pass its batch on ({reason}): {MORE_SHARED_MEMORY}"
        ) from None
    return batch


def check_shared_memory(batch: Any, number: int) -> None:
    """Refuse workers whose prefetched batches do not fit into /dev/shm; Docker's has 64 MB."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:  # not Linux
        return
    size = found.f_blocks * found.f_frsize
    needed = number * sum(part.nbytes for part in _parts(batch) if isinstance(part, Tensor))
    if needed > size:
        raise UserError(
            f"{SHARED_MEMORY} has {size / 1e6:,.1f} MB, but the {number} batches of all workers "
            f"need {needed / 1e6:,.1f} MB: {MORE_SHARED_MEMORY}"
        )


def _parts(batch: Any) -> Iterator[Any]:
    """Yield the tensors of a batch, and what else it has."""
    if not isinstance(batch, dict | list | tuple):
        yield batch
        return
    for part in batch.values() if isinstance(batch, dict) else batch:
        yield from _parts(part)
