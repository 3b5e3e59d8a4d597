"""Temporary folders that are always removed: also after a signal and, after a kill, by the next run."""

import atexit
import math
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from .errors import FastprojError
from .lock import locked

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)  # the last delays one of the others


def temporary_folder() -> Path:
    """Return the system's folder for temporary files, without an interruption: Python creates a file to test it."""
    with _uninterrupted():
        return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Create a folder `.<name>.fastproj-*` in `parent` that contains an empty `tmp`, and remove it at the end.

    Folders that killed processes left behind are removed first.
    """
    for left in parent.glob(f".{name}.fastproj-*"):
        with suppress(OSError, FastprojError):  # another user's, in use, or gone meanwhile
            # Without `tmp`, its owner may not have locked it yet.
            if (left / "tmp").exists() or time.time() - left.stat().st_mtime > 2:
                _remove_unused(left)
    folder = parent / f".{name}.fastproj-{secrets.token_hex(8)}"
    # A signal may come before `try`, in `finally`, or between this function and its caller.
    at_exit = atexit.register(partial(_remove, folder))
    try:
        folder.mkdir(mode=0o700)
        with locked(folder, "", timeout_s=math.inf):
            (folder / "tmp").mkdir()
            yield folder
    finally:
        _remove(folder)
        atexit.unregister(at_exit)


def _remove_unused(folder: Path) -> None:
    with locked(folder, "in use") as held:
        if held:
            _remove(folder)


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
