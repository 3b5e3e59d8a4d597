"""An exclusive lock on a folder, released when the process ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import FastprojError


@contextmanager
def locked(folder: Path, busy: str, timeout_s: float = 0.0) -> Iterator[bool]:
    """Hold the lock on a folder; yields False on a file system without locks, where there is nothing to hold.

    Raises:
        FastprojError: another process holds it for longer than `timeout_s`; `busy` is the message.
        OSError: the folder cannot be opened.
    """
    descriptor, deadline = os.open(folder, os.O_RDONLY), time.monotonic() + timeout_s
    try:
        while (held := _try_lock(descriptor)) is None:
            if time.monotonic() >= deadline:
                raise FastprojError(busy)
            time.sleep(0.02)
        yield held
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return False
    return True
