"""The worker processes of a loader: stop requests, and shared memory."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.data import get_worker_info

from .errors import MORE_SHARED_MEMORY, UserError

SHARED_MEMORY = "/dev/shm"  # noqa: S108


def init_worker(_: int) -> None:
    """Let a worker outlive the signals that ask to stop, but not the main process, which saves."""
    signal.set_wakeup_fd(-1)  # the main process's
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()


def _end_after(main_process: int) -> None:
    while os.getppid() == main_process:
        time.sleep(1)
    os._exit(1)


def to_shared_memory(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a `collate_fn` that moves a worker's batch to shared memory.

    Else a thread does that, and an error there loses the batch: the main process would wait for it
    for ever.
    """
    return partial(_collate_and_share, collate)


def _collate_and_share(collate: Callable[[Any], Any], samples: Any) -> Any:
    batch = collate(samples)
    if get_worker_info() is None:
        return batch
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


def check_shared_memory(batch: Any, workers: int, prefetch_factor: int) -> None:
    """Refuse workers whose prefetched batches do not fit into /dev/shm; Docker's has 64 MB."""
    size_of_batch = sum(part.nbytes for part in _parts(batch) if isinstance(part, Tensor))
    needed = workers * prefetch_factor * size_of_batch
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


def _parts(batch: Any) -> Iterator[Any]:
    """Yield the tensors of a batch, and what else it has."""
    if not isinstance(batch, dict | list | tuple):
        yield batch
        return
    for part in batch.values() if isinstance(batch, dict) else batch:
        yield from _parts(part)
