"""Temporary folders that are removed also after a signal."""

import atexit
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

DAY_S = 24 * 60 * 60


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Create a folder `.<name>.fastproj-*` in `parent`, and remove it at the end.

    Those that a killed program left there a day ago are removed as well.
    """
    for leftover in parent.glob(f".{name}.fastproj-*"):
        with suppress(OSError):  # another program removes its own
            if time.time() - leftover.lstat().st_mtime > DAY_S:
                shutil.rmtree(leftover)
    folder = parent / f".{name}.fastproj-{secrets.token_hex(8)}"
    # A signal may come before `try`, in `finally`, or between this function and its caller.
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(remove)
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        remove()
