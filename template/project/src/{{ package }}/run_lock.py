"""A lock on a run's folder, so that no two processes write into it. It ends with its process, however that ends."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from .errors import UserError

LOCK = ".lock"
BEAT_SECONDS = 10.0
"""How often the file of a held lock is touched, for other machines, to which not every file system shows locks."""

_held: set[Path] = set()


class Opened(ExitStack):
    """What a run has opened, its lock first."""

    folder: Path | None = None
    """The folder that it has locked."""

    def lock(self, folder: Path) -> None:
        """Lock a folder as `locked` does, unless this run has done so."""
        if self.folder != folder.resolve():
            self.enter_context(locked(folder))
            self.folder = folder.resolve()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder.

    Raises:
        UserError: another process holds it.
        OSError: the folder cannot be written.
    """
    file = folder.resolve() / LOCK
    if file in _held:  # of which the system would grant another
        raise UserError(f"{folder} is in use by this process: end that run, or give another --run.name")
    with file.open("a+", encoding="utf-8") as stream:  # opened once: to close it anywhere releases the lock
        stream.seek(0)
        owner = _owner(stream.read())
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike `flock`, not inherited by loader workers
            held = _is_touched(file, owner)
        except (BlockingIOError, PermissionError):  # which one depends on the system
            held = True
        except OSError:  # a file system without locks
            held = _is_touched(file, owner)
        if held:
            who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
            raise UserError(f"{folder} is in use by {who}: wait for it or stop it, or give another --run.name")
        stream.truncate(0)
        stream.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        stream.flush()
        ended = Event()
        Thread(target=_touch, args=(file, ended), daemon=True).start()
        _held.add(file)
        try:
            yield
        finally:
            _held.discard(file)
            ended.set()
            stream.truncate(0)


def _owner(text: str) -> dict[str, object]:
    """Return the process that the file of a lock names; empty if it was released."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return {}


def _is_touched(file: Path, owner: dict[str, object]) -> bool:
    """Whether a process of another machine, which has not released the lock, still touches its file; waits for it."""
    if owner.get("host", socket.gethostname()) == socket.gethostname():
        return False
    before, waited = file.stat().st_mtime, 0.0
    while waited < 2.5 * BEAT_SECONDS and file.stat().st_mtime == before:
        time.sleep(0.1 * BEAT_SECONDS)
        waited += 0.1 * BEAT_SECONDS
    return file.stat().st_mtime != before


def _touch(file: Path, ended: Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        with suppress(OSError):  # a network that fails for a moment
            os.utime(file)
