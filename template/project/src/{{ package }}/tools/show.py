"""Show the data: print a summary, and plot one prepared batch.

python -m <package>.tools.show --config configs/default.yaml
python -m <package>.tools.show --data.path my/files --output data.png
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import data, techniques
from ..config import Config, parse
from ..contracts import Batch, problems, tensors
from ..errors import UserError, short_warnings
from ..failure import leave
from ..loaders import Plan, TrainOrder
from .atomic_file import atomic_write
from .optional import fitting, take

MAX_PROBLEMS = 100
SAMPLES = 64
"""Samples of the batch whose mean and standard deviation are printed."""


def show(cfg: Config, target: Path) -> None:
    """Print counts, shapes and problems, and plot the first training batch.

    Raises:
        UserError: the data cannot be read, or the plot cannot be written.
    """
    if target.suffix.lower() != ".png":
        raise UserError(f"--output {target}: its name must end with .png")
    if not target.absolute().parent.is_dir():
        raise UserError(f"cannot write {target} (there is no such folder): give another --output")
    samples: Any = techniques.load(cfg.data)
    print(f"train           {len(samples.train)} samples")
    print(f"val             {len(samples.val)} samples")
    try:
        summary = take("view", "summary")
        with fitting("view", "summary"):
            described = summary(samples)
    except UserError as error:
        described = {"no summary": str(error)}
    for name, value in described.items():
        print(f"{name:15} {value}")
    found = problems(samples)
    for problem in found[:MAX_PROBLEMS]:
        print(f"problem         {problem}")
    if len(found) > MAX_PROBLEMS:
        print(f"problem         and {len(found) - MAX_PROBLEMS} more")
    batch = _prepared(samples, cfg, 16, True)
    for name, value in _named(batch).items():
        kinds = [f"{tuple(it.shape)} {str(it.dtype).removeprefix('torch.')}" for it in tensors(value)]
        print(f"{f'batch[{name}]':15} {', '.join(kinds) or type(value).__name__}")
    for name, value in _named(_prepared(samples, cfg, SAMPLES, False)).items():
        for part in tensors(value):
            if part.is_floating_point() and part.numel() > 1:
                _print_statistics(f"batch[{name}]", part.double())
    try:
        plot = take("view", "plot")
        with fitting("view", "plot"):
            figure = plot(batch, samples.spec)
    except UserError as error:
        print(f"no plot         {error}")
        return
    with atomic_write(target) as file:
        figure.savefig(file, dpi=120)
    print(f"plot            {target}")


def _prepared(samples: Any, cfg: Config, count: int, training: bool) -> Batch:
    """Return the first training batch of so many samples; in training it is augmented, also labels, by mixup."""
    plan = Plan(len(samples.train), min(count, len(samples.train)), 1, 1, 1)
    chosen = next(iter(TrainOrder(plan, 0, cfg.run.seed, 0, samples.train)))
    prepare = data.Prepare(samples.spec, cfg.data)
    batch: Batch = prepare(samples.train.__getitems__(chosen), training, torch.Generator().manual_seed(cfg.run.seed))
    return batch


def _named(batch: Batch) -> Mapping[Any, Any]:
    if isinstance(batch, Mapping):
        return batch
    return dict(enumerate(batch if isinstance(batch, tuple | list) else [batch]))


def _print_statistics(name: str, values: Tensor) -> None:
    """Print mean and standard deviation, and warn if they are far from 0 and 1, for which weights are initialized."""
    mean, deviation = values.mean().item(), values.std().item()
    print(f"{name:15} mean {mean:.3g}, standard deviation {deviation:.3g}")
    if not (abs(mean) <= 0.5 and 0.5 <= deviation <= 2):
        print(f"{'warning':15} {name} is far from mean 0 and standard deviation 1: normalize it in `Prepare`")


def main(argv: list[str] | None = None) -> None:
    """Read the command line: --output, and the keys of a config."""
    name = f"{__package__}.show"
    options = argparse.ArgumentParser(
        prog=f"python -m {name}",
        usage="%(prog)s [--output FILE.png] [--config FILE.yaml] [--data.path ...]",
        add_help=False,  # --help is that of the config, which lists all keys
        allow_abbrev=False,
    )
    options.add_argument("--show", action="store_true")  # until 0.2 this tool was `python -m <package>.data --show`
    options.add_argument("--output", type=Path, default=Path("data.png"))
    args, keys = options.parse_known_args(argv)
    short_warnings()
    try:
        show(parse(name, "Show the data; --output names the file of the plot.", keys), args.output)
    except UserError as error:
        leave(error, keys)


if __name__ == "__main__":
    main()
