"""Trains with Ray Train: a worker per GPU of a Ray cluster; if one fails, all start again.

python -m <package>.components.ray --workers 8 -- --config configs/default.yaml --run.name first

Without a cluster, Ray starts one on this machine. All machines need this folder, on a shared file
system.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from ..components import Config
from ..config import parse
from ..distributed import World
from ..errors import Stopped, UserError, one_line
from ..train import train


def work(settings: dict[str, Any]) -> None:
    """Train as one worker, in the process group that Ray has created."""
    os.chdir(settings["folder"])  # paths in the config are relative to it
    context = get_context()
    rank = context.get_world_rank()
    world = World(
        rank,
        context.get_world_size(),
        get_device(),
    )
    try:
        train(settings["cfg"], world)
    except Stopped as stopped:  # by run.hours, which is not a failure
        print(stopped)


def start(
    options: list[str],
    workers: int,
    restarts: int,
) -> None:
    """Train with so many workers; if one fails, start all again from the newest checkpoint."""
    cfg = parse(Config, options)
    if cfg.run.name is None:
        raise UserError("a run without a name cannot be resumed: add --run.name first")
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}})
    there = ray.cluster_resources()
    device = cfg.run.device
    use_gpu = device != "cpu" and (device != "auto" or there.get("GPU", 0) > 0)
    kind = "GPU" if use_gpu else "CPU"
    count = int(there.get(kind, 0))
    if not 1 <= workers <= count:
        raise UserError(
            f"--workers is {workers}, but the Ray cluster has {count} {kind}s: "
            f"use a number from 1 to {count}"
        )
    place = cfg.run.dir.resolve() / cfg.run.name
    failures = FailureConfig(max_failures=restarts)
    backend = "cpu:gloo,cuda:nccl" if use_gpu else "gloo"
    trainer = TorchTrainer(
        work,
        train_loop_config={"cfg": cfg, "folder": str(Path.cwd())},
        torch_config=TorchConfig(backend=backend),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=RunConfig("ray", str(place), failure_config=failures),
    )
    trainer.fit()


def main(arguments: list[str] | None = None) -> None:
    """Start the training with the options of the command line."""
    parser = argparse.ArgumentParser(description="Train with Ray Train.")
    add = parser.add_argument
    add("--workers", type=int, required=True, help="processes in all, one per GPU")
    add("--restarts", type=int, default=3, help="restarts after a failure, at most")
    add("options", nargs="*", help="after --: options of the training command, with --run.name")
    given = parser.parse_args(arguments)
    with one_line():
        start(given.options, given.workers, given.restarts)


if __name__ == "__main__":
    main()
