"""Measure a trained model on the held-out samples, and write what comes out beside its checkpoint.

Start it on a run's newest checkpoint, or on a certain one, also on several ranks:

    python -m <package>.tools.evaluate runs/first
    torchrun --nproc-per-node 2 -m <package>.tools.evaluate runs/first/checkpoints/step-00000120
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .. import checkpoint, data, distributed, loaders, model, speed
from ..config import LoaderConfig, SpeedConfig, from_dict
from ..distributed import World
from ..errors import UserError, in_one_line
from ..metrics import evaluate


def measure(path: Path, precision: Any, world: World) -> tuple[Path, dict[str, float]]:
    """Return the checkpoint that was found at `path`, a run's folder or a checkpoint, and its held-out metrics.

    Raises:
        UserError: there is no good checkpoint, or it is of another model.
    """
    found = checkpoint.find(path)
    if found is None:
        raise UserError(f"{path} has no good checkpoint: give a run's folder, or a checkpoint's")
    cfg = from_dict(checkpoint.read_manifest(found)["config"])
    # On any number of ranks and any device, whatever the run had; what is measured does not depend on the rest.
    plain = replace(SpeedConfig(channels_last=cfg.speed.channels_last), precision=precision or cfg.speed.precision)
    number_format = speed.setup(replace(cfg, speed=plain), world.device)
    samples = data.load(cfg.data)
    net = speed.place(model.build(cfg.model, samples.spec), plain, world.device)
    state = checkpoint.read_state(found, torch.device("cpu"))
    checkpoint.load_weights(net, {**state["model"], **state.get("ema", {})}, found)
    prepare = data.Prepare(samples.spec, cfg.data).to(world.device)
    order = loaders.EvalOrder(len(samples.val), cfg.train.micro_batch, world.rank, world.world_size)
    plainly = replace(cfg, loader=LoaderConfig(), data=replace(cfg.data, cache="none"))
    batches = loaders.open_loader(samples.val, order, plainly, samples.in_memory, world)
    return found, evaluate(net, batches, prepare, number_format.autocast(), world, order.own)


def main(argv: list[str] | None = None) -> None:
    """Read the command line, measure, print a table and write `evaluation.json`."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.evaluate", description="Measure a trained model.")
    parser.add_argument("path", type=Path, help="a run's folder, or one checkpoint")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    formats = ["auto", "bf16", "fp16", "tf32", "fp32", "fp8"]
    parser.add_argument("--precision", choices=formats, help="instead of the run's, on a device that lacks it")
    args = parser.parse_args(argv)
    try:
        with distributed.start(args.device) as world:
            found, results = measure(args.path, args.precision, world)
            if world.is_main:
                for name, value in results.items():
                    print(f"{name:16}{value:.6g}")
                write(results, found / "evaluation.json")
    except UserError as error:
        distributed.leave(in_one_line(error))


def write(results: dict[str, float], target: Path) -> None:
    """Write the metrics as JSON.

    Raises:
        UserError: the checkpoint's folder cannot be written.
    """
    try:
        target.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror}): the metrics are those above") from error


if __name__ == "__main__":
    main()
