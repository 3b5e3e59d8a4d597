"""Sends the rows of metrics.jsonl to a tracker: `python -m <package>.trackers.follow`, which a run starts itself.

Each tracker is a module of its own, with a class `Tracker` as described by `Sender`.
"""

import fcntl
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from .. import environment
from . import END, FINISH_SECONDS

RECORD = "tracker-{}.json"
"""File in the run's folder with what a tracker calls it, and the last row that was sent."""
BATCH = 100
"""Rows that are sent at once."""


class Row(NamedTuple):
    """A row of metrics."""

    split: str
    step: int
    values: dict[str, float]

    @property
    def place(self) -> list[int]:
        """Its place in the order of rows: a validation follows the training row of its step."""
        return [self.step, int(self.split == "val")]

    def named(self) -> dict[str, float]:
        """Return the values as `train/loss` and so on."""
        return {f"{self.split}/{name}": value for name, value in self.values.items()}


@dataclass
class Followed:
    """A run whose rows are sent to the tracker `name`."""

    name: str
    folder: Path
    config: dict[str, Any]
    about: dict[str, Any]
    """Commit, versions, machine and environment."""
    record: dict[str, Any] = field(default_factory=dict)
    """What `keep` has kept, also before the run was resumed."""

    @property
    def project(self) -> str:
        """The name of the project, under which a tracker has its runs."""
        return environment.PACKAGE.name

    def keep(self, **values: Any) -> None:
        """Write values of this tracker into the run's folder."""
        self.record |= values
        file = self.folder / RECORD.format(self.name)
        partial = file.with_name(f".{file.name}.partial")
        partial.write_text(json.dumps(self.record) + "\n", encoding="utf-8")
        partial.replace(file)

    def flat_config(self) -> dict[str, Any]:
        """Return the options as `train.steps` and so on."""
        sections = ((name, keys) for name, keys in self.config.items() if isinstance(keys, dict))
        return {f"{name}.{key}": value for name, keys in sections for key, value in keys.items()}


class Sender(Protocol):
    """What a tracker's module has as `Tracker`: created with a `Followed`, before any row.

    A run that is resumed makes some steps again: none may be there twice. `send` gets all rows of the file, in their
    order; with `KEEPS_PLACE`, only those that were never sent before.
    """

    KEEPS_PLACE: bool

    def send(self, rows: list[Row]) -> None:
        """Send some rows."""

    def close(self) -> None:
        """Send what is left, and end."""


def read_json(file: Path) -> dict[str, Any]:
    """Return what a JSON file has; empty if there is none, or it is damaged."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def opened(name: str, folder: Path, command: list[str]) -> Followed:
    """Find out what a tracker is told about a run, which was started by a command."""
    folder = folder.absolute()
    manifests = sorted((folder / "checkpoints").glob("step-*/manifest.json"))
    known = read_json(manifests[-1]).get("provenance") if manifests else None
    about = known if isinstance(known, dict) else {**found_here(), "command": command}
    return Followed(name, folder, read_json(folder / "config.json"), about, read_json(folder / RECORD.format(name)))


def found_here() -> dict[str, Any]:
    """Return what a run's first checkpoint will say about code and machine, without importing torch."""
    machine = {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": environment.cpu(),
        "cores": os.cpu_count(),
    }
    about = {"versions": environment.versions(), "machine": machine, "environment": environment.environment()}
    with suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-C", str(environment.PACKAGE), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
        lines = subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
        commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
        about["git"] = {"commit": commit, "uncommitted": any(not line.startswith("#") for line in lines)}
    return about


@contextmanager
def only_one(name: str, folder: Path, wait: bool) -> Iterator[None]:
    """Hold a lock on what a run's folder keeps of a tracker: when a run is resumed, that of before may not be done.

    Raises:
        BlockingIOError: another process holds it, and this one is not to wait.
    """
    with (folder / f".tracker-{name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            pass
        yield


def whole_rows(lines: BinaryIO) -> Iterator[Row]:
    """Return the rows up to the end of the file; one that is not written to its end is left for the next call."""
    while line := lines.readline():
        if not line.endswith(b"\n"):
            lines.seek(-len(line), os.SEEK_CUR)
            return
        with suppress(ValueError, TypeError, KeyError):  # a damaged line
            found = dict(json.loads(line))
            split, step = str(found.pop("split")), int(found.pop("step"))
            found.pop("seconds", None)
            yield Row(split, step, {name: value for name, value in found.items() if type(value) in (int, float)})


def send(tracker: Sender, run: Followed, rows: Iterator[Row]) -> int:
    """Send rows in batches, and return how many they were."""
    last, count = run.record.get("sent", [-1, 0]) if tracker.KEEPS_PLACE else [-1, 0], 0
    new = (row for row in rows if row.place > last)
    while batch := list(islice(new, BATCH)):
        if tracker.KEEPS_PLACE:
            run.keep(sent=batch[-1].place)  # before they are sent: rather missing than twice
        tracker.send(batch)
        count += len(batch)
    return count


def push(name: str, folder: Path, counted: Callable[[Iterator[Row]], Iterator[Row]]) -> int:
    """Send the rows of a run to a tracker, each only once, and return how many the run has.

    Raises:
        BlockingIOError: another process sends them.
    """
    with only_one(name, folder, wait=False), (folder / "metrics.jsonl").open("rb") as lines:
        rows = list(whole_rows(lines))
        run = opened(name, folder, sys.orig_argv)
        if rows and rows[-1].place > run.record.get("sent", [-1, 0]):
            tracker: Sender = import_module(f".{name}", __package__).Tracker(run)
            send(tracker, run, counted(iter(rows)))
            tracker.close()
    return len(rows)


def _end_in_time(over: threading.Event, told: threading.Event) -> None:
    """Wait for the run, whose end closes the pipe; then end this process in time, even if the tracker hangs."""
    while (found := os.read(0, 65536)) and END not in found:
        told.set()
    over.set()
    told.set()
    time.sleep(FINISH_SECONDS)
    os._exit(1)


def main() -> None:
    """Follow a run until it is over; the last line that is printed says what failed."""
    name, folder, command = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    over, told = threading.Event(), threading.Event()
    threading.Thread(target=_end_in_time, args=(over, told), daemon=True).start()
    with suppress(OSError, AttributeError):
        os.nice(5)  # the run comes first
    try:
        with only_one(name, folder, wait=True), (folder / "metrics.jsonl").open("rb") as lines:
            run = opened(name, folder, command)
            tracker: Sender = import_module(f".{name}", __package__).Tracker(run)
            while True:
                ended = over.is_set()  # asked first: later rows are read as well
                send(tracker, run, whole_rows(lines))
                if ended:
                    break
                told.wait()
                told.clear()
            tracker.close()
    except Exception as error:
        print(f"\n{type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        os._exit(1)  # whatever the tracker has left to do


if __name__ == "__main__":
    main()
