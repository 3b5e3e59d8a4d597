"""Temporary folders that are always removed: also after a signal and, after a kill, by a later run."""

import atexit
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)  # the last delays one of the others
_ABANDONED_S = 24 * 3600.0
"""Age at which a folder belongs to a process that was killed."""


def temporary_folder() -> Path:
    """Return the system's folder for temporary files, without an interruption: Python creates a file to test it."""
    with _uninterrupted():
        return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Create a folder `.<name>.fastproj-*` in `parent`, and remove it at the end, with those of killed processes."""
    for left in parent.glob(f".{name}.fastproj-*"):
        with suppress(FileNotFoundError):  # another process has removed its own
            if time.time() - left.lstat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)
    folder = parent / f".{name}.fastproj-{secrets.token_hex(8)}"
    # A signal may come before `try`, in `finally`, or between this function and its caller.
    at_exit = atexit.register(partial(_remove, folder))
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        _remove(folder)
        atexit.unregister(at_exit)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove(folder: Path) -> None:
    """Remove a folder; repeat it while a git process that outlives its parent still writes there."""
    with _uninterrupted():
        for _ in range(40):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return
            time.sleep(0.05)
