"""One rank that trains as one of several: a program started once per rank.

python -m gpu_smoke.several '{"ranks": 2, "rank": 0, ...}'
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

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


@dataclass(frozen=True)
class Job:
    """What the ranks do, each in a process of its own."""

    projects: str
    runs: str
    model: str
    options: dict[str, list[str]]
    """By name of the run, options of the training command."""
    ranks: int
    backend: str
    devices: list[str]
    """By rank."""


def train(lab: Lab, model: str, options: dict[str, list[str]], backend: str, devices: list[str]) -> dict[str, Any]:
    """Train on several ranks, and return each run, with the warnings of rank 0 under `warnings`.

    Raises:
        RuntimeError: a rank has failed; the message is its last line.
    """
    runs = Path(tempfile.mkdtemp(dir=lab.folder))
    job = Job(str(lab.projects), str(runs), model, options, len(devices), backend, devices)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "LOCAL_WORLD_SIZE": str(job.ranks),
    }
    command = [sys.executable, "-m", __name__, json.dumps(asdict(job))]
    started = [
        subprocess.Popen([*command, str(rank)], env=os.environ | place, stdout=2, stderr=subprocess.PIPE, text=True)
        for rank in range(job.ranks)
    ]
    ended = [process.communicate()[1] for process in started]
    print(*ended, sep="\n", file=sys.stderr)
    for process, errors in zip(started, ended, strict=True):
        if process.returncode != 0:
            raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else f"exit {process.returncode}")
    project = Project(lab.projects, "pytorch", model, lab.device, runs)
    found: dict[str, Any] = {name: project.read(name) for name in options}
    return found | {"warnings": json.loads((runs / "warnings").read_text())}


def main(job: Job, rank: int) -> None:
    """Train each run in turn, as one rank."""
    device = torch.device(job.devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    bound = device if job.backend == "nccl" else None
    limit = timedelta(seconds=60)
    dist.init_process_group(job.backend, rank=rank, world_size=job.ranks, device_id=bound, timeout=limit)
    project = Project(Path(job.projects), "pytorch", job.model, device, Path(job.runs))
    size = job.ranks if job.ranks > 1 else Several(1)
    world = project.module("distributed").World(rank, size, device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, options in job.options.items():
            project.train(*options, name=name, world=world)
    if rank == 0:
        Path(job.runs, "warnings").write_text(json.dumps(sorted({str(warning.message) for warning in caught})))
    sys.stderr.flush()
    os._exit(0)  # without Python's teardown, in which gloo's threads sometimes abort


def compare(runs: dict[str, Any], expected: Trained, close: float) -> dict[str, float]:
    """Return by how much the losses of each run differ from the expected, which may be at most `close`."""
    found = {f"difference_{name}": run.differs(expected) for name, run in runs.items() if isinstance(run, Trained)}
    assert max(found.values()) <= close, f"losses differ: {found}"
    return found


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])), int(sys.argv[2]))
