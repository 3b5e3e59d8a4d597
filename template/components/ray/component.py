"""Trains with Ray Train, which starts a worker per GPU of a Ray cluster, and starts all again if one fails.

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
    try:
        train(
            settings["cfg"], World(context.get_world_rank(), context.get_world_size(), get_device())
        )
    except Stopped as stopped:  # by run.hours, which is not a failure
        print(stopped)


def start(options: list[str], workers: int, restarts: int) -> None:
    """Train with so many workers; if one fails, start all again from the newest checkpoint."""
    cfg = parse(Config, options)
    if cfg.run.name is None:
        raise UserError("a run without a name cannot be resumed: add --run.name first")
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}})
    gpus = int(ray.cluster_resources().get("GPU", 0))
    use_gpu = cfg.run.device not in ("auto", "cpu") or (cfg.run.device == "auto" and gpus > 0)
    kind, found = ("GPUs", gpus) if use_gpu else ("CPUs", int(ray.cluster_resources()["CPU"]))
    if not 1 <= workers <= found:
        raise UserError(
            f"--workers is {workers}, but the Ray cluster has {found} {kind}: use a number from 1 to {found}"
        )
    place = cfg.run.dir.resolve() / cfg.run.name
    trainer = TorchTrainer(
        work,
        train_loop_config={"cfg": cfg, "folder": str(Path.cwd())},
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=RunConfig(
            "ray", str(place), failure_config=FailureConfig(max_failures=restarts)
        ),
    )
    trainer.fit()


def main(arguments: list[str] | None = None) -> None:
    """Start the training with the options of the command line."""
    parser = argparse.ArgumentParser(description="Train with Ray Train.")
    parser.add_argument("--workers", type=int, required=True, help="processes in all, one per GPU")
    parser.add_argument("--restarts", type=int, default=3, help="restarts after a failure, at most")
    parser.add_argument(
        "options", nargs="*", help="after --: options of the training command, with --run.name"
    )
    given = parser.parse_args(arguments)
    with one_line():
        start(given.options, given.workers, given.restarts)


if __name__ == "__main__":
    main()
