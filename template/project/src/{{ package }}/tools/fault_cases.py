"""The faults that `tools.faults` causes, where, and what a run with each is to end with and to say."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import RESTART, STOPPED

MOMENTS = {
    "start": "before the ranks meet",
    "fetch": "before a training batch",
    "forward": "before a forward pass",
    "all-reduce": "in the backward pass, when other ranks wait in the all-reduce of gradients",
    "step": "before the optimizer updates the weights",
    "validation": "before a forward pass of a validation",
    "write": "when a file of a checkpoint is written, which is not the first",
    "before-fsync": "when it is written, and not on the disk",
    "after-fsync": "when it is on the disk",
    "before-rename": "when a checkpoint is complete under its temporary name",
    "after-rename": "when it has its name",
    "teardown": "after the last step",
}
"""Where a fault can occur, and what these places are."""
SAVING = ("write", "before-fsync", "after-fsync", "before-rename", "after-rename")
"""The moments of a checkpoint, at which there is an older one."""
POLITE = ("sigterm", "sigint", "sigusr1")
DEADLY = {"sigkill": -9, "sigsegv": -11, "abort": -6, "torn-file": -9, "lost-rename": -9}
# After a lack of memory, BatchNorm and dropout see smaller micro-batches: only the rows and files are compared.
PASSING = ("sigstop", "gil-held", "slow-fsync", "straggler", "out-of-memory")
OTHER_FRAMEWORK = Path(__file__).parents[1].joinpath("framework.py").exists()
"""Whether this project trains with Lightning or Accelerate."""
SAYS = {
    **dict.fromkeys(POLITE, r"stopped +at step \d+"),
    "exception": "an injected exception",
    "full-disk": r"cannot save \S+step-\d+",
    "read-only-disk": r"cannot save \S+step-\d+.*Read-only file system",
    "nan": "loss is nan at step",
    "port-in-use": "the port is in use",
    "worker-killed": r"loader worker \d+ was ended by SIGKILL",
}
"""What a run says of a fault."""
RESTARTED = {
    "sigkill": "(rank {rank}|the run) ended by SIGKILL",
    "abort": "(rank {rank}|the run) ended by SIGABRT",
    "sigstop": "no progress for .*: rank {rank} is stopped by a signal",
    "gil-held": "no progress for .*: (rank {rank}|the run) holds Python's lock",
    "exception": "an injected exception",
    "worker-killed": SAYS["worker-killed"],
}
"""What is said where the project's launcher restarts a run; it hangs where it stays stopped, or the GIL is held."""


@dataclass(frozen=True)
class Case:
    """A fault, and what it happens to."""

    fault: str
    moment: str
    rank: str = "0"
    strategy: str = "single"
    restart: int = 0
    """Ranks of the resumed run; 0 for as many as before."""
    launched: bool = False
    """Whether the project's launcher starts the run, and restarts it."""

    @property
    def ranks(self) -> int:
        return 1 if self.strategy == "single" else 2

    def __str__(self) -> str:
        restart = f", then {self.restart}" if self.restart else ", restarted" * self.launched
        return f"{self.fault:15}{self.moment:15}{self.rank:5}{self.strategy}{restart}"


@dataclass
class Result:
    """What came of a case."""

    statuses: list[int | None]
    lost: int = 0
    """Optimizer steps that the resumed run repeated."""
    said: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


COVER = [
    *(Case(fault, moment) for fault, moment in zip(POLITE, ("forward", "validation", "before-fsync"), strict=True)),
    *(Case("sigkill", moment) for moment in ("fetch", "before-rename", "teardown")),
    Case("sigkill", "all-reduce", "1", "ddp"),
    Case("sigkill", "after-fsync", "1", "fsdp"),
    Case("sigterm", "step", "all", "ddp", restart=1),
    Case("sigterm", "validation", "1", "fsdp"),
    Case("sigstop", "step"),
    Case("sigsegv", "validation"),
    Case("abort", "step"),
    Case("exception", "all-reduce"),
    Case("worker-killed", "fetch"),
    Case("gil-held", "forward"),
    Case("full-disk", "write"),
    Case("read-only-disk", "before-rename"),
    Case("slow-fsync", "before-fsync"),
    Case("torn-file", "after-rename"),
    Case("lost-rename", "after-rename"),
    Case("nan", "forward"),
    Case("out-of-memory", "forward", "1", "ddp"),
    Case("straggler", "forward", "1", "ddp"),
    Case("port-in-use", "start", "0", "ddp"),
    Case("sigstop", "all-reduce", "1", "ddp", launched=True),
]
"""Each fault and each moment, on one process and on two."""


def expected_status(case: Case) -> int:
    """Return the status of a rank with the fault: also a polite stop has nothing to stop after the last step."""
    if case.fault == "out-of-memory" and (case.strategy == "fsdp" or OTHER_FRAMEWORK):  # the step is not made again
        return RESTART
    if case.launched or case.fault in PASSING or (case.fault in POLITE and case.moment == "teardown"):
        return 0
    return STOPPED if case.fault in POLITE else (DEADLY | {"worker-killed": RESTART}).get(case.fault, 1)


def unexpected(case: Case, result: Result) -> list[str]:
    """Return what is wrong with the statuses of the run, and with what it says."""
    found, expected = [], expected_status(case)
    own = range(len(result.statuses)) if case.rank == "all" or case.launched else [int(case.rank)]
    others = [status for rank, status in enumerate(result.statuses) if rank not in own]
    if any(result.statuses[rank] != expected for rank in own):
        found.append(f"the statuses are {result.statuses}, not {expected}")
    elif any((status in (0, STOPPED)) != (expected in (0, STOPPED)) for status in others):
        found.append(f"the statuses are {result.statuses}: all ranks should end alike")
    says = SAYS.get(case.fault, "") if expected else ""
    if case.launched:
        says = RESTARTED[case.fault].format(rank=case.rank.replace("all", r"\d"))
    if not re.search(says, result.said):
        found.append(f"it does not say {says!r}")
    if case.fault in DEADLY and "Traceback" in result.said:
        found.append("it prints a traceback")
    return found
