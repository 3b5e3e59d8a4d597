"""Restarts a run that was killed, hung or failed unexpectedly, from its newest checkpoint, so many times at most."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import RESTART, STOPPED, UNEXPECTED
from .ranks import Place, Ranks

SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
RESTARTED = {UNEXPECTED, RESTART, *(128 + number for number in SIGNALS)}
"""The exit statuses after which a run is restarted: an unexpected exception, a hang, a signal that no user sends."""
PAUSE = 1.0
"""Seconds before the first restart; each further one waits twice as long."""


def run(command: Sequence[str], find_place: Callable[[int], Place], restarts: int) -> int:
    """Run a training command in its ranks, and restart it where that can help; return the last exit status.

    `find_place` is called with the number of restarts so far. A restart continues the run of the start before, also
    one that got its name from the time. A second one needs a newer checkpoint than the start before began with, or
    smaller micro-batches.
    """
    ranks, began_at, record = Ranks(), 0, ""
    ranks.handle_signals()
    options: list[str] = []
    for restart in range(restarts + 1):
        with tempfile.TemporaryDirectory(prefix=f"launch-{os.getpid()}-") as temporary:
            status = ranks.run([*command, *options], find_place(restart), Path(temporary))
            folder = _folder(Path(temporary))
        if status not in RESTARTED or ranks.stopping:
            return status
        newest = newest_step(folder)
        record, former = _memory_record(folder), record
        progress = restart == 0 or newest > began_at or record != former
        if not restarts:
            return status
        if restart == restarts or not progress:
            why = f"after {restarts} restarts" if progress else "as there is no newer checkpoint than at the last start"
            print(f"error: not restarted again, {why}", file=sys.stderr)
            return status
        began_at, pause = newest, PAUSE * 2**restart
        if folder is not None:
            options = ["--run.resume=auto", f"--run.dir={folder.parent}", f"--run.name={folder.name}"]
        where = f"from step {newest}" if newest else "from the beginning, as it has no checkpoint"
        name = os.path.relpath(folder) if folder is not None else "the run"
        print(f"restart {restart + 1} of {restarts}: {name} continues {where}, in {pause:g} s", file=sys.stderr)
        if _is_stopped(ranks, pause):
            return STOPPED
    return status


def _memory_record(folder: Path | None) -> str:
    """Return what `memory.restart` has left in a run's folder; empty if memory was enough."""
    file = folder / "out_of_memory.json" if folder is not None else None
    return file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""


def newest_step(folder: Path | None) -> int:
    """Return the step of a run's newest complete checkpoint; 0 if it has none."""
    found = folder.glob("checkpoints/step-*/manifest.json") if folder is not None else ()
    names = [path.parent.name.removeprefix("step-") for path in found]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _folder(temporary: Path) -> Path | None:
    """Return the run's folder, which its first rank here has left in the temporary one; None if it came not so far."""
    try:
        return Path((temporary / "run").read_text(encoding="utf-8"))
    except OSError:
        return None


def _is_stopped(ranks: Ranks, seconds: float) -> bool:
    """Wait, and return whether a signal came meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not ranks.stopping:
        time.sleep(0.05)
    return bool(ranks.stopping)
