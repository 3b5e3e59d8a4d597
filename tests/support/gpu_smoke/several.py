"""Ranks that train together, each in a process of its own."""

import json
import multiprocessing
import os
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import FSDPModule

from .check import Lab
from .compiling import Graphs
from .projects import Project, Trained


class Several(int):
    """The number 1, which compares as 2 does: the code for several ranks runs in a process group of one."""

    def __eq__(self, other: object) -> bool:
        return other == 2

    def __ne__(self, other: object) -> bool:
        return other != 2

    def __lt__(self, other: int) -> bool:
        return other > 2

    def __le__(self, other: int) -> bool:
        return other >= 2

    def __gt__(self, other: int) -> bool:
        return other < 2

    def __ge__(self, other: int) -> bool:
        return other <= 2

    __hash__ = int.__hash__


Runs = dict[str, tuple[str, list[str]]]
"""By name of the run, model and options of the training command."""


@dataclass(frozen=True)
class Job:
    """What the ranks do."""

    projects: Path
    folder: Path
    """Of the runs, and of a log for each rank: a pipe that nobody reads would stop a rank when it is full."""
    runs: Runs
    backend: str
    devices: list[str]
    """By rank."""
    port: int

    def log(self, rank: int) -> Path:
        """Return the file of what a rank writes."""
        return self.folder / f"rank{rank}.log"

    @property
    def about(self) -> Path:
        """The file of what rank 0 has seen."""
        return self.folder / "about.json"


@dataclass(frozen=True)
class Seen:
    """What happened in a run, in rank 0's process."""

    wrapper: str
    """What synchronizes the gradients: DistributedDataParallel, or FSDPModule."""
    warnings: list[str]
    graphs: int
    """Compiled ones."""
    captured: bool
    """Whether inductor captures CUDA graphs."""
    skipped_graphs: int
    """Compiled graphs that inductor did not capture, although the mode says so."""


@dataclass(frozen=True)
class Ended:
    """The runs that have ended, what happened in them, and why there are no others."""

    runs: dict[str, Trained]
    seen: dict[str, Seen]
    failure: str
    """The last line of the rank that failed first; empty if none has."""


def train(lab: Lab, runs: Runs, backend: str, devices: list[str]) -> Ended:
    """Train on several ranks, one run after another, until one fails."""
    folder = Path(tempfile.mkdtemp(dir=lab.folder))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        job = Job(lab.projects, folder, runs, backend, devices, free.getsockname()[1])
    # A fork is quicker to start, but cannot use CUDA if any import before it asked for devices.
    context: Any = multiprocessing.get_context("forkserver" if lab.dry else "spawn")
    context.set_forkserver_preload([__name__])
    started = [context.Process(target=main, args=(job, rank)) for rank in range(len(devices))]
    for process in started:
        process.start()
    failed = _wait(started)
    written = map(job.log, range(len(devices)))  # a rank that cannot import this module has none
    logs = [log.read_text(errors="replace").strip() if log.exists() else "" for log in written]
    print(*logs, sep="\n", file=sys.stderr)
    failure = "" if failed is None else (logs[failed].splitlines() or [f"exit {started[failed].exitcode}"])[-1]
    about = json.loads(job.about.read_text()) if job.about.exists() else {}
    seen = {name: Seen(**row) for name, row in about.items()}
    projects = {name: Project(lab.projects, "pytorch", runs[name][0], lab.device, folder) for name in seen}
    return Ended({name: project.read(name) for name, project in projects.items()}, seen, failure)


def _wait(processes: list[Any]) -> int | None:
    """Wait until all have ended; if one fails, which is returned, end the others: they would wait for it."""
    running = {process.sentinel: rank for rank, process in enumerate(processes)}
    while running:
        for sentinel in wait(list(running)):
            rank = running.pop(sentinel)
            processes[rank].join()
            if processes[rank].exitcode != 0:
                for process in processes:
                    process.kill()
                    process.join()
                return rank
    return None


def main(job: Job, rank: int) -> None:
    """Be one rank."""
    with job.log(rank).open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    status = 0
    try:
        _train_each(job, rank)
    except (Exception, SystemExit):
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)  # without Python's teardown, in which gloo's threads sometimes abort, and NCCL's may wait


def _train_each(job: Job, rank: int) -> None:
    size = len(job.devices)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job.port), "LOCAL_WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    device = torch.device(job.devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    bound = device if job.backend == "nccl" else None
    limit = timedelta(seconds=60)
    dist.init_process_group(job.backend, rank=rank, world_size=size, device_id=bound, timeout=limit)
    seen: dict[str, Any] = {}
    with _synchronized_alone() if size == 1 else nullcontext():
        for name, (model, options) in job.runs.items():
            project = Project(job.projects, "pytorch", model, device, job.folder)
            world = project.module("distributed").World(rank, size if size > 1 else Several(1), device)
            seen[name] = asdict(_train(project, name, options, world))
            if rank == 0:
                job.about.write_text(json.dumps(seen))


def _train(project: Project, name: str, options: list[str], world: Any) -> Seen:
    """Train, and return what happened."""
    distributed, graphs, wrappers = project.module("distributed"), project.hook(Graphs), list[str]()
    wrap = distributed.wrap

    def seeing(*arguments: Any) -> nn.Module:
        net: nn.Module = wrap(*arguments)
        wrappers.append("FSDPModule" if isinstance(net, FSDPModule) else type(net).__name__)
        return net

    counters.clear()
    with warnings.catch_warnings(record=True) as caught, mock.patch.object(distributed, "wrap", seeing):
        warnings.simplefilter("always")
        project.train(*options, name=name, world=world, hooks=[graphs])
    said = sorted({str(warning.message) for warning in caught})
    skipped = counters["inductor"]["cudagraph_skips"]
    return Seen(" ".join(wrappers), said, graphs.counts[-1], graphs.captured, skipped)


@contextmanager
def _synchronized_alone() -> Iterator[None]:
    """Let SyncBatchNorm call the collectives in a group of one rank, too: it asks torch for the number of ranks."""
    forward = nn.SyncBatchNorm.forward

    def asking(self: nn.SyncBatchNorm, x: Tensor) -> Tensor:
        with mock.patch.object(dist, "get_world_size", return_value=Several(1)):
            return forward(self, x)

    with mock.patch.object(nn.SyncBatchNorm, "forward", asking):
        yield
