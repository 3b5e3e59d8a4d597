"""Short runs of the real training command, for the tools that measure: tune, bench and profile.

Each is a process of its own, so that none sees the memory or the caches of another, and one may run out of memory.
"""

import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import RESTART, UserError
from . import ranks

PROGRAM = f"{__package__.rpartition('.')[0]}.train"
POLL = 0.05
"""Seconds between looks at a run."""
LOOK = 1.0
"""Seconds for which other programs are watched before a trial."""
NAME = "trial"
VALIDATION = 20.0
"""Seconds after which a validation has needed all the memory that it will, however long it takes."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that end a tool, and with it the run of its trial."""
SIGNS = (b"out of memory", b"allocate memory", b"not enough memory", b"MemoryError", b"bad_alloc")
"""What is printed when memory runs out."""
ENDLESS = 1_000_000
"""Optimizer steps of the run of a trial, which ends before: a warm-up fits in, and the learning rate stays low."""


@dataclass(frozen=True)
class Trial:
    """What a short run gave."""

    outcome: Literal["ok", "out of memory", "timeout", "failed"]
    """failed: an option was refused, or the run ended by an error; `reason` says why."""
    reason: str
    """The last line of what the run printed as an error."""
    seconds: float
    """Of the whole process."""
    memory_gb: float | None
    """Peak memory in 10^9 bytes: of the device, as allocated; on the CPU, of all processes; None if not known."""
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    """All options of the run, as in its config.json."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Training rows of metrics.jsonl after the warm-up."""
    validation_seconds: float | None = None
    """Of the validation, if there was one."""

    def median(self, key: str = "samples_per_second") -> float:
        """Return the median over the rows that have this value; NaN if none has."""
        values = [row[key] for row in self.rows if key in row]
        return statistics.median(values) if values else float("nan")


def run(
    options: Sequence[str],
    *,
    steps: int = 30,
    warmup: int = 10,
    every: int = 5,
    validate: bool = False,
    limit: float,
    memory_gb: float = math.inf,
    program: str = PROGRAM,
    keep: Path | None = None,
) -> Trial:
    """Train for `warmup` and then `steps` optimizer steps, and begin a validation if asked to, for `limit` seconds.

    `options` are of the training command, such as `--config=configs/default.yaml`. Nothing of the run is kept, but in
    the new folder `keep` what a profiler has written: it is killed as soon as it has logged its last row, or has
    validated for `VALIDATION` seconds. It is out of memory when its processes have `memory_gb` of the host's memory.

    Raises:
        UserError: what is to be kept cannot be moved there.
    """
    last = warmup + steps
    fixed = {"run.name": NAME, "run.resume": "null", "log.progress": "false", "log.every": every}
    fixed |= {"train.steps": ENDLESS, "train.eval_every": last, "train.patience": "null", "train.unfreeze_step": "null"}
    fixed |= {"checkpoint.every": "null", "checkpoint.minutes": "null", "train.on_nonfinite": "stop"}
    fixed |= {"log.tracker": "none"}
    began, trained_at, over, done, looks = time.monotonic(), math.inf, False, False, 0
    with tempfile.TemporaryDirectory(prefix="trial-") as temporary:
        folder, errors = Path(temporary, NAME), Path(temporary, "errors")
        arguments = [*options, f"--run.dir={temporary}", *(f"--{name}={value}" for name, value in fixed.items())]
        with started(program, arguments, errors) as child:
            while (ended := child.poll()) is None and time.monotonic() < began + limit:
                looks += 1
                if memory_gb < math.inf and looks % 5 == 0:  # which takes some milliseconds
                    over = _memory(_family(child.pid), "VmRSS") > memory_gb
                if over or _out_of_memory(errors):
                    break
                if trained_at == math.inf and _has_row(folder, "train", last):
                    trained_at = time.monotonic()
                waited = time.monotonic() >= trained_at + (VALIDATION if validate else 0)
                if done := waited or _has_row(folder, "val", last):
                    break
                time.sleep(POLL)
            peak = _memory(_family(child.pid), "VmHWM")
        seconds, rows = time.monotonic() - began, read_rows(folder)
        lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
        outcome: Any = "ok" if done else "timeout"
        if over or _out_of_memory(errors) or ended in (RESTART, -signal.SIGKILL, 128 + signal.SIGKILL):
            outcome = "out of memory"
            reason = f"its processes have more than {memory_gb:.2g} GB" if over else reason or "killed by the system"
        elif ended is not None:
            outcome = "failed"
        elif not done:
            reason = f"no result within {limit:.0f} s"
        trained = [row for row in rows if row["split"] == "train" and warmup < row["step"] <= last]
        validated = next((row["seconds"] for row in rows if row["split"] == "val" and row["step"] >= last), None)
        on_device = [row["memory_gb"] for row in rows if "memory_gb" in row]
        memory = max(on_device) if on_device else peak or None
        config = json.loads((folder / "config.json").read_text("utf-8")) if (folder / "config.json").exists() else {}
        if keep is not None and outcome == "ok":
            try:
                (folder / "profile").rename(keep)
            except OSError as error:
                raise UserError(f"cannot write {keep} ({error.strerror}): set TMPDIR to a larger folder") from error
    took = validated - trained[-1]["seconds"] if validated is not None and trained else None
    return Trial(outcome, " ".join(reason.removeprefix("error: ").split()), seconds, memory, config, trained, took)


@contextmanager
def started(module: str, arguments: Sequence[str], errors: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a module of this project, whose errors go to a file; in the end neither it nor what it started is left."""
    with errors.open("wb") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=stream,
            start_new_session=True,
            preexec_fn=ranks.end_with_parent(),
        )
    try:
        yield child
    finally:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a second Ctrl-C leaves nothing behind either
        found: list[int] = []
        while new := [pid for pid in _family(child.pid) if pid not in found]:  # one that is stopped starts no other
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            found += new
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait()
        for pid in found:  # which `tools/restart.py` could not remove
            for folder in Path(tempfile.gettempdir()).glob(f"launch-{pid}-*"):
                shutil.rmtree(folder, ignore_errors=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def configs(options: list[str], *files: str) -> list[str]:
    """Return options of the training command: with these config files of the project, if none is given.

    Raises:
        UserError: the first file is missing.
    """
    if any(option.partition("=")[0] == "--config" for option in options):
        return options
    if not Path(files[0]).is_file():
        raise UserError(f"there is no {files[0]} here: start it in the project's folder, or give --config FILE")
    return [*(f"--config={file}" for file in files if Path(file).is_file()), *options]


def end_on_signals() -> None:
    """Let the signals that end this program raise an exception, so that no run is left; not those that are ignored."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def read_rows(folder: Path, newest: int = 2**30) -> list[dict[str, Any]]:
    """Return the complete rows of the log so far, or those in its `newest` bytes."""
    with suppress(OSError), (folder / "metrics.jsonl").open("rb") as stream:
        skipped = max(0, stream.seek(0, os.SEEK_END) - newest)
        stream.seek(skipped)
        lines = stream.read().splitlines(keepends=True)[1 if skipped else 0 :]
        return [json.loads(line) for line in lines if line.endswith(b"\n")]
    return []


def _has_row(folder: Path, split: str, step: int) -> bool:
    return any(row["split"] == split and row["step"] >= step for row in read_rows(folder, 4096))


def _out_of_memory(errors: Path) -> bool:
    """Whether the run has said so: it would go on with smaller forward passes."""
    said = errors.read_bytes()
    return any(sign in said for sign in SIGNS)


def _family(pid: int) -> list[int]:
    """Return a process and all that it and its children have started, or that are in its session; on Linux."""
    parents: dict[int, tuple[int, int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            values = file.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(file.parent.name)] = int(values[1]), int(values[3])
    found = [pid, *(member for member, (_, session) in parents.items() if session == pid and member != pid)]
    for member in found:  # which grows
        found += [child for child, (parent, _) in parents.items() if parent == member and child not in found]
    return found


def _memory(family: list[int], key: str) -> float:
    """Return the resident memory of processes in 10^9 bytes, now or at its largest; 0 where it is not known."""
    total = 0.0
    for pid in family:
        with suppress(OSError, ValueError, IndexError):
            total += float(Path(f"/proc/{pid}/status").read_text().partition(f"{key}:")[2].split()[0])
    return total * 1024 / 1e9


def busy() -> str:
    """Return a warning if other programs use the processors of this machine, else "". Call it before a trial."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    try:
        before, began = _processor_seconds(cores), time.monotonic()
        time.sleep(LOOK)
        used = (_processor_seconds(cores) - before) / (time.monotonic() - began)
    except (OSError, ValueError, IndexError):  # of the last minute, in which this program may have run trials itself
        used = os.getloadavg()[0]
    if used < 0.25 * len(cores):
        return ""
    return f"the machine is busy ({used:.1f} of {len(cores)} cores are in use): times are less certain"


def _processor_seconds(cores: set[int]) -> float:
    """Return the time for which some cores were in use, or taken from a virtual machine, since the system started."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    own = [cells for cells in lines if cells[0] in {f"cpu{core}" for core in cores}]
    return sum(sum(map(int, cells[1:4] + cells[6:9])) for cells in own) / os.sysconf("SC_CLK_TCK")
