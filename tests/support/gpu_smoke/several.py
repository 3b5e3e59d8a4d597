"""Ranks that train together, each in a process of its own."""

import json
import multiprocessing
import os
import socket
import sys
import tempfile
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from .check import Lab
from .projects import Project, Trained


class Several(int):
    """The number 1, but not found equal to it: the code for several ranks runs in a process group of one."""

    def __eq__(self, other: object) -> bool:
        return int(self) == other and other != 1

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __gt__(self, other: object) -> bool:
        return isinstance(other, int) and (int(self) > other or other == 1)

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


@dataclass(frozen=True)
class Ended:
    """The runs, and what happened in rank 0's process."""

    runs: dict[str, Trained]
    warnings: list[str]
    skipped_graphs: int
    """Compiled graphs that inductor did not capture, although the mode says so."""


def train(lab: Lab, runs: Runs, backend: str, devices: list[str]) -> Ended:
    """Train on several ranks, one run after another.

    Raises:
        RuntimeError: a rank has failed; the message is its last line.
    """
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
    failed = ""
    for rank, process in enumerate(started):
        process.join()
        errors = job.log(rank).read_text(errors="replace").strip()
        print(errors, file=sys.stderr)
        if process.exitcode != 0 and not failed:
            failed = errors.splitlines()[-1] if errors else f"exit {process.exitcode}"
    if failed:
        raise RuntimeError(failed)
    found = {
        name: Project(lab.projects, "pytorch", model, lab.device, folder).read(name)
        for name, (model, _) in runs.items()
    }
    return Ended(found, **json.loads((folder / "about").read_text()))


def main(job: Job, rank: int) -> None:
    """Train each run in turn, as one rank."""
    with job.log(rank).open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, (model, options) in job.runs.items():
            project = Project(job.projects, "pytorch", model, device, job.folder)
            world = project.module("distributed").World(rank, size if size > 1 else Several(1), device)
            project.train(*options, name=name, world=world)
    if rank == 0:
        said = sorted({str(warning.message) for warning in caught})
        about = {"warnings": said, "skipped_graphs": counters["inductor"]["cudagraph_skips"]}
        (job.folder / "about").write_text(json.dumps(about))
    sys.stderr.flush()
    os._exit(0)  # without Python's teardown, in which gloo's threads sometimes abort
