"""`log.tracker`: a process that follows metrics.jsonl, so that no tracker can delay, stop or outlive a run.

The run tells it of each row by one byte, and never waits: the rows themselves are in the file. When the run ends, by
whatever means, the process reads the file to its end.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ..errors import UserError

NAMES = ("tensorboard", "trackio", "wandb", "mlflow")
"""The modules of trackers, and the extras that have their packages."""
CLOSE_SECONDS, OPEN_SECONDS = 5.0, 10.0
"""How long a run waits for its tracker when it ends; and after the tracker's start, of a run that is as short."""
FINISH_SECONDS = 60.0
"""How long after the end of its run a tracker may still send."""
END = b"E"
"""What tells a tracker that its run is over, besides the end of the pipe."""
OUTPUT = "tracker.log"
"""File in the run's folder with what the tracker prints."""

_finishing: list[subprocess.Popen[bytes]] = []
"""Trackers that were left to themselves."""


def check(name: str, option: str = "log.tracker=") -> None:
    """Refuse a tracker, given by an option, whose package is not installed.

    Raises:
        UserError: names the extra that has it.
    """
    found = find_spec(name)
    if found is None or found.origin is None:  # a folder of that name, such as the runs of wandb
        raise UserError(f"{option}{name} needs a package: pip install -e '.[{name}]'")


class Follower:
    """The tracker of a run, in a process of its own, which `check` has not refused."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.output, self.started = name, folder / OUTPUT, time.monotonic()
        self.failed = False
        reads, self.pipe = os.pipe()
        os.set_blocking(self.pipe, False)
        command = [sys.executable, "-m", f"{__name__}.follow", name, str(folder.absolute()), *sys.orig_argv]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=reads,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for the run
            )
        os.close(reads)

    def row(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Tell of a row in metrics.jsonl; if the tracker has ended, say why, once."""
        try:
            os.write(self.pipe, b".")
        except BlockingIOError:  # the pipe is full: it is behind, and reads the file anyway
            pass
        except OSError:
            self._say_why()

    def close(self) -> None:
        """Let it read the file to its end, and wait for a short time."""
        with suppress(OSError):
            os.write(self.pipe, END)  # loader workers may have the pipe open
        os.close(self.pipe)
        age = time.monotonic() - self.started
        try:
            if self.process.wait(max(CLOSE_SECONDS, OPEN_SECONDS - age)) != 0:
                self._say_why()
        except subprocess.TimeoutExpired:
            _finishing.append(self.process)
            self._say(f"is still sending, and is ended in {FINISH_SECONDS:.0f} s")

    def _say_why(self) -> None:
        if not self.failed:
            self.failed = True
            lines = [""]
            with suppress(OSError, subprocess.TimeoutExpired):
                self.process.wait(1)
                lines += self.output.read_text(encoding="utf-8", errors="replace").split("\n")
            why = next((line.strip() for line in reversed(lines) if line.strip()), "it ended")
            self._say(f"has failed ({why[:200]})")

    def _say(self, what: str) -> None:
        module = f"{__package__.rpartition('.')[0]}.tools.report"
        print(
            f"warning: log.tracker={self.name} {what}: metrics.jsonl has all rows, and python -m {module} --push "
            f"{self.name} sends the rest",
            file=sys.stderr,
            flush=True,
        )
