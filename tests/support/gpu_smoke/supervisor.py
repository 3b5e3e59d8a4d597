"""Runs the checks in a worker, within time limits; a worker that crashes or hangs is replaced for the next check."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

from .results import Result, append, append_result, read

START = 300.0
"""Seconds in which a worker must have imported torch: gigabytes of libraries, from a disk that may be cold."""


class WorkerError(Exception):
    """The worker did not answer, or cannot run checks; the message says why."""


class Worker:
    """A worker process, which has listed its checks."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path, limit: float = START) -> None:
        """Start the process, and wait `limit` seconds for its list.

        Raises:
            WorkerError: there is none, and the process has ended.
        """
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                command, stdin=PIPE, stdout=PIPE, stderr=stream, env=environment, start_new_session=True
            )
        self.unread = b""
        try:
            self.hello = self.read(limit)
            if "error" in self.hello:
                raise WorkerError(self.hello["error"])
        except BaseException:
            self.stop()
            raise

    def ask(self, name: str, limit: float) -> dict[str, Any]:
        """Run a check, and return its result and whether the process can run another.

        Raises:
            WorkerError: it took longer than `limit` seconds, or the process died.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{name}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerError(_how_it_died(self.process)) from error
        return self.read(limit)

    def read(self, limit: float) -> dict[str, Any]:
        """Return the next answer."""
        assert self.process.stdout is not None
        end = time.monotonic() + limit
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise WorkerError(f"took longer than {limit:.0f} s")
            found = os.read(self.process.stdout.fileno(), 65536)
            if not found:
                raise WorkerError(_how_it_died(self.process))
            self.unread += found
        line, _, self.unread = self.unread.partition(b"\n")
        return dict(json.loads(line))

    def stop(self) -> None:
        """End the process and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    @property
    def alive(self) -> bool:
        """Whether the next check can be run in it."""
        return self.process.poll() is None


def _how_it_died(process: subprocess.Popen[bytes]) -> str:
    status = process.wait()
    return f"the process died of {signal.Signals(-status).name}" if status < 0 else f"the process exited with {status}"


@dataclass
class Supervisor:
    """Runs checks one after another, and writes each result at once."""

    command: list[str]
    environment: dict[str, str]
    output: Path
    """File of JSON lines; the log is next to it."""
    limit: float
    """Seconds in total, from `started`."""
    only: Sequence[str] = ()
    """Parts of names; empty for all checks."""
    groups: Sequence[str] = ()
    """Whole names of groups; empty for all checks."""
    started: float = field(default_factory=time.monotonic)
    worker: Worker | None = field(default=None, init=False)

    def run(self) -> Iterator[Result]:
        """Yield each result, which is on disk already.

        Where `output` has results, those that passed are kept, and those that failed are run again at the end.

        Raises:
            WorkerError: not even the first worker starts, or `output` has the results of another device.
        """
        try:
            hello = self._start().hello
            for name, group, limit in self._choose(hello["checks"], hello["about"]):
                result = self._check(name, group, limit)
                append_result(self.output, result)
                yield result
        finally:
            self._stop()

    def _choose(self, checks: list[list[Any]], machine: dict[str, Any]) -> list[list[Any]]:
        if not self.output.exists():
            append(self.output, {"about": machine})
        about, before = read(self.output)
        if about["device"] != machine["device"]:
            raise WorkerError(f"{self.output} has results of {about['device']}, and this is {machine['device']}")
        status = {result.name: result.status for result in before}
        chosen = [
            row
            for row in checks
            if (not self.only or any(part in row[0] for part in self.only))
            and (not self.groups or row[1] in self.groups)
            and status.get(row[0]) not in ("ok", "skipped")
        ]
        return sorted(chosen, key=lambda row: status.get(row[0]) == "failed")

    def _check(self, name: str, group: str, limit: float) -> Result:
        began = time.monotonic()
        try:
            if self._left <= 0:
                raise WorkerError
            worker = self.worker if self.worker and self.worker.alive else self._start()
            answer = worker.ask(name, min(limit, self._left))
        except WorkerError as error:
            self._stop()
            seconds = round(time.monotonic() - began, 3)
            if self._left <= 0:
                return Result(name, group, "not run", seconds, message="the time limit was reached")
            return Result(name, group, "failed", seconds, message=str(error))
        if not answer["usable"]:
            self._stop()
        return Result(**answer["result"])

    @property
    def _left(self) -> float:
        return self.started + self.limit - time.monotonic()

    def _start(self) -> Worker:
        self._stop()
        self.worker = Worker(self.command, self.environment, self.output.with_suffix(".log"), min(START, self._left))
        return self.worker

    def _stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()
        self.worker = None


def worker_command(projects: Path, folder: Path, dry_run: bool, checks: str = "") -> list[str]:
    """Return the command line of a worker, whose runs have their files in a folder."""
    command = [sys.executable, "-m", f"{__package__}.worker", f"--projects={projects}", f"--folder={folder}"]
    return [*command, *["--dry-run"] * dry_run, *[f"--checks={checks}"] * bool(checks)]
