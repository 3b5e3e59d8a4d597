"""What tune needs to know about machine and project, from a process of its own, which may hold the device.

python -m <package>.tools.tuning.probe REQUEST.json ANSWER.json
"""

import dataclasses
import json
import os
import sys
import time
import typing
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ... import distributed, model, speed, techniques
from ...config import Config, LoaderConfig, from_dict
from ...contracts import Data
from ...distributed import World, has_streams
from ...errors import UserError, short_warnings
from ...failure import leave
from ...faults import provenance
from ...loaders import Loader, Plan, TrainOrder
from .found import Facts

SECONDS = 1.5
"""How long a loader is iterated over."""
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def facts(cfg: Config, world: World) -> Facts:
    """Return what there is, of the first rank's device.

    Raises:
        UserError: the data or the model do not fit the config.
    """
    samples = techniques.load(cfg.data)
    ranks = techniques.processes_to_start(cfg.run)
    found = provenance.machine(world.device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    streams = has_streams(world.device)
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    workers = techniques.worker_count(cfg.loader, samples, world)
    convolutions = True
    with suppress(Exception), torch.device("meta"):  # which a model of your own need not support
        convolutions = any(isinstance(part, CONVOLUTIONS) for part in model.build(cfg.model, samples.spec).modules())
    hints = typing.get_type_hints(type(cfg.data)).get("cache")
    return Facts(
        device=world.device.type,
        ranks=ranks,
        cores=cores,
        samples=len(samples.train),
        workers=workers,
        precision=speed.setup(cfg, world.device).format,
        convolutions=convolutions,
        memory_gb=torch.accelerator.get_memory_info(world.device)[1] / 1e9 if streams else _free_gb(),
        streams=streams,
        caches=[str(value) for value in typing.get_args(hints)],
        machine=", ".join(
            [f"{cores} cores of {found['cpu']}", *found.get("gpus", [])[:1], f"torch {torch.__version__}"]
        ),
    )


def _free_gb() -> float:
    """Return the host's memory that is free for programs, in 10^9 bytes, within the limits of its group."""
    free = float("inf")
    with suppress(OSError, IndexError, ValueError):
        free = float(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) * 1024
    with suppress(OSError, ValueError):
        most = float(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, most - float(Path("/sys/fs/cgroup/memory.current").read_text()))
    return free / 1e9


def ceiling(samples: Data, cfg: Config, loader: LoaderConfig, world: World, ranks: int) -> float:
    """Return the samples per second of iterating over the training loader of one rank, times the ranks."""
    micro_batch = min(cfg.train.micro_batch, len(samples.train))
    plan = Plan(len(samples.train), micro_batch, 1, 1, 1_000_000)
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    workers = techniques.worker_count(loader, samples, world)
    order = TrainOrder(plan, 0, cfg.run.seed, 0, samples.train)
    batches = iter(techniques.cache_on_device(Loader(samples.train, order, loader, workers, world, 0), cfg.data))
    for _ in range(2 + workers * loader.prefetch_factor):  # those that were loaded while the workers started
        next(batches)
    began, count = time.monotonic(), 0
    while time.monotonic() < began + SECONDS or count == 0:
        next(batches)
        count += 1
    return ranks * count * micro_batch / (time.monotonic() - began)


def main(argv: list[str] | None = None) -> None:
    """Answer a request: a run's config, and the loader settings that are asked for, if any."""
    request, answer = map(Path, sys.argv[1:] if argv is None else argv)
    asked: dict[str, Any] = json.loads(request.read_text(encoding="utf-8"))
    short_warnings()
    try:
        cfg = from_dict(asked["config"])
        with distributed.start(cfg.run.device) as world:
            if "loaders" in asked:
                samples = techniques.load(cfg.data)
                settings = [dataclasses.replace(cfg.loader, **it) for it in asked["loaders"]]
                found: Any = [ceiling(samples, cfg, it, world, asked["ranks"]) for it in settings]
            else:
                found = dataclasses.asdict(facts(cfg, world))
    except UserError as error:
        leave(error)
    answer.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
