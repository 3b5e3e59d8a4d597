"""An exclusive lock on a folder, released when the process ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import FastprojError

_POLL_S = 0.02


@contextmanager
def locked(folder: Path, busy: str, timeout_s: float = 0.0) -> Iterator[bool]:
    """Hold the lock on a folder; yields False on a file system without locks, where there is nothing to hold.

    Raises:
        FastprojError: another process holds it for longer than `timeout_s`; `busy` is the message.
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _acquire(descriptor, busy, time.monotonic() + timeout_s)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, busy: str, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise FastprojError(busy) from error
            time.sleep(_POLL_S)
        except OSError:
            return False
