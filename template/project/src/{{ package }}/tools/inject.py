"""Train, and cause one fault on the way, to see what the run does: a signal, a disk that fails, a rank that hangs.

    python -m <package>.tools.inject sigkill forward --step 4 -- --config configs/smoke.yaml --run.name first
    torchrun --nproc-per-node 2 -m <package>.tools.inject nan forward --rank 1 -- --config configs/smoke.yaml

Nothing in the training code knows of it: functions of the running process are replaced. When the fault occurs, a line
is appended to the file `--record`; a rank with a line in there has no second fault, also when it is started again.
"""

import argparse
import ctypes
import errno
import json
import math
import multiprocessing
import os
import resource
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..checkpoint import PREFIX, all_checkpoints
from ..contracts import Batch
from ..run import Run
from .fault_cases import MOMENTS, SAVING

PACKAGE = __package__.rpartition(".")[0]
FILE_LIMIT = 4096
"""Bytes that a file can have on the full disk."""
SLOW, NOTICE, LATE = 1.0, 1.0, 0.1
"""Seconds of a slow fsync, until other ranks know of a signal, and that a slow rank takes longer for each step."""


@dataclass
class Fault:
    """A fault that is to occur once, on a rank or on all."""

    kind: str
    moment: str
    rank: str
    step: int
    """Optimizer steps that the run must have made."""
    record: Path
    hold: float
    """Seconds for which the GIL is held."""
    run: Run | None = None
    armed: bool = False
    renamed: tuple[Path, Path] = (Path(), Path())
    """The last checkpoint's temporary name, and its name."""
    poisoned: bool = False
    """Whether the next loss is NaN."""

    def arm(self) -> None:
        """Let the fault occur on this rank, if it is the one, unless it has."""
        here = os.environ.get("RANK", "0")
        before = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        self.armed = self.rank in (here, "all") and int(here) not in [json.loads(line)["rank"] for line in before]

    def reach(self, moment: str) -> None:
        """Cause the fault if its moment has come."""
        step = self.run.progress.step if self.run else 0
        if not self.armed or moment != self.moment or (step < self.step and moment != "start"):
            return
        if self.run and not self._can_resume(self.run, moment):
            return
        self.armed = self.kind == "straggler"  # which is late in every step
        line = json.dumps({"rank": int(os.environ.get("RANK", "0")), "step": step, "pid": os.getpid()})
        with self.record.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        FAULTS[self.kind](self)

    def _can_resume(self, run: Run, moment: str) -> bool:
        """Whether there is a checkpoint to resume from; waits for one in the making, unless this is a moment of it."""
        thread = run.saver.thread
        if moment not in SAVING and thread is not None:
            run.saver.pace.hurry.set()
            thread.join()
        kept = all_checkpoints(run.folder / "checkpoints")
        return moment not in SAVING or any(path != self.renamed[1] for path in kept)

    def attach(self, run: Run) -> None:
        """Watch the moments of a run's steps."""
        self.run = run
        run.train_batches = self._fetching(run.train_batches)
        run.parts.model.register_forward_pre_hook(
            lambda model, _: self.reach("forward" if model.training else "validation")
        )
        run.parts.model.register_forward_hook(self._after_forward)
        run.parts.optimizer.register_step_pre_hook(lambda *_: self.reach("step"))

    def _fetching(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            self.reach("fetch")
            batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _after_forward(self, model: torch.nn.Module, _: Any, output: Any) -> Any:
        loss, metrics = output
        if self.poisoned:
            self.poisoned = False
            loss, metrics = loss * math.nan, {"loss": (metrics["loss"][0] * math.nan, metrics["loss"][1])}
        if loss.requires_grad:
            loss.register_hook(lambda _: self.reach("all-reduce"))
        return loss, metrics


def _fail(fault: Fault) -> None:
    raise {
        "exception": RuntimeError("an injected exception"),
        "read-only-disk": OSError(errno.EROFS, os.strerror(errno.EROFS)),
        "out-of-memory": torch.OutOfMemoryError("an injected lack of memory"),
    }[fault.kind]


def _refuse_writing(fault: Fault) -> None:
    """Fill the disk: of the files that are written, the kernel refuses all but the beginning."""
    if fault.moment != "write":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _tear(fault: Fault) -> None:
    """Lose the end of the checkpoint's largest file, as some disks do when the power fails."""
    largest = max(fault.renamed[1].iterdir(), key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def _lose_rename(fault: Fault) -> None:
    os.rename(*reversed(fault.renamed))
    os.kill(os.getpid(), signal.SIGKILL)


def _occupy_port(_: Fault) -> None:
    taken = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    taken.listen()
    os.set_inheritable(taken.detach(), False)  # open until the process ends


def _send(fault: Fault) -> None:
    os.kill(os.getpid(), getattr(signal, fault.kind.upper()))
    time.sleep(NOTICE)


def _poison(fault: Fault) -> None:
    fault.poisoned = True


SIGNALS = ("sigterm", "sigint", "sigusr1", "sigkill", "sigstop")
FAULTS: dict[str, Callable[[Fault], object]] = {
    **dict.fromkeys(SIGNALS, _send),
    "sigsegv": lambda _: ctypes.string_at(0),
    "abort": lambda _: os.abort(),
    "exception": _fail,
    "worker-killed": lambda _: multiprocessing.active_children()[0].kill(),
    "gil-held": lambda fault: ctypes.PyDLL(None).sleep(math.ceil(fault.hold)),
    "full-disk": _refuse_writing,
    "read-only-disk": _fail,
    "slow-fsync": lambda _: time.sleep(SLOW),
    "torn-file": _tear,
    "lost-rename": _lose_rename,
    "nan": _poison,
    "out-of-memory": _fail,
    "straggler": lambda _: time.sleep(LATE),
    "port-in-use": _occupy_port,
}
"""What each fault does to the process."""


def replace_functions(fault: Fault) -> None:
    """Replace the functions of this process that reach the moments."""
    start, finish, save, fsync, rename = Run.__init__, Run.finish, torch.save, os.fsync, os.rename

    def started(run: Run, *arguments: Any) -> None:
        start(run, *arguments)
        fault.attach(run)

    def finished(run: Run) -> None:
        finish(run)
        fault.reach("teardown")

    def saved(*arguments: Any, **options: Any) -> None:
        fault.reach("write")
        save(*arguments, **options)

    def flushed(descriptor: Any) -> None:
        fault.reach("before-fsync")
        fsync(descriptor)
        fault.reach("after-fsync")

    def renamed(source: Any, target: Any, **options: Any) -> None:
        of_checkpoint = Path(target).name.startswith(PREFIX)
        if of_checkpoint:
            fault.renamed = Path(source), Path(target)
            fault.reach("before-rename")
        rename(source, target, **options)
        if of_checkpoint:
            fault.reach("after-rename")

    changes: list[tuple[Any, str, Any]] = [
        (Run, "__init__", started),
        (Run, "finish", finished),
        (torch, "save", saved),
    ]
    for place, name, function in (*changes, (os, "fsync", flushed), (os, "rename", renamed)):
        setattr(place, name, function)


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and train."""
    own = sys.argv[1:] if argv is None else argv
    own, options = (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [])
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.inject",
        description="Train, and cause one fault on the way. The options of the training follow after `--`.",
        epilog="; ".join(f"{name}: {text}" for name, text in MOMENTS.items()),
    )
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("moment", choices=MOMENTS)
    parser.add_argument("--rank", default="0", help="the rank that it occurs on, or all; 0 by default")
    parser.add_argument("--step", type=int, default=0, help="optimizer steps that the run must have made; 0 by default")
    parser.add_argument("--record", type=Path, default=Path(os.devnull), help="file to record that it occurred")
    parser.add_argument("--hold", type=float, default=3.0, help="gil-held: for how many seconds; 3 by default")
    args = parser.parse_args(own)
    fault = Fault(args.fault, args.moment, args.rank, args.step, args.record, args.hold)
    fault.arm()
    replace_functions(fault)
    fault.reach("start")
    sys.argv = [f"{PACKAGE}.train", *options]
    runpy.run_module(f"{PACKAGE}.train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
