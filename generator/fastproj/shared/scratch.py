"""Scratch folders that are removed whatever happens, also after a signal or by the next run after a kill."""

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Create a folder `.<name>.fastproj-*` in `parent` that contains an empty `tmp`, and remove it at the end.

    Folders that killed processes left behind are removed first.

    Raises:
        OSError: it cannot be created.
    """
    _remove_abandoned(parent, name)
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.fastproj-", dir=parent))
    try:
        with _locked(folder):
            (folder / "tmp").mkdir()
            yield folder
    finally:
        with uninterrupted():
            _remove(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, by which others see that it is in use; where locks are not to be had, do without."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(parent: Path, name: str) -> None:
    """Remove scratch folders that no process holds a lock on."""
    for left in parent.glob(f".{name}.fastproj-*"):
        with suppress(OSError):  # another user's, in use, or gone meanwhile
            if time.time() - left.stat().st_mtime < 2:
                continue  # its owner may not have locked it yet
            descriptor = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(left)
            finally:
                os.close(descriptor)


@contextmanager
def uninterrupted(permanently: bool = False) -> Iterator[None]:
    """Ignore signals, for example during a clean-up; `permanently` also afterwards, unless the body fails."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        for number, handler in before.items() if not (succeeded and permanently) else ():
            signal.signal(number, handler)


def _remove(folder: Path) -> None:
    """Remove a folder; repeat it while a git process that outlives its parent still writes there."""
    for _ in range(40):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)
