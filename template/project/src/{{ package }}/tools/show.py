"""Say what the data are, and draw one prepared batch of them.

python -m <package>.data --show --config configs/default.yaml
python -m <package>.data --show --data.path my/files --output data.png
"""

import sys
from pathlib import Path

import torch

from .. import data
from ..config import Config, parse
from ..errors import UserError, in_one_line
from ..loaders import Plan, TrainOrder
from . import view


def show(cfg: Config, target: Path) -> None:
    """Print counts, shapes and problems, and draw the first batch of training.

    Raises:
        UserError: the data cannot be read, or the picture cannot be written.
    """
    samples = data.load(cfg.data)
    print(f"train           {len(samples.train)} samples")
    print(f"val             {len(samples.val)} samples")
    for name, value in view.summary(samples).items():
        print(f"{name:15} {value}")
    for problem in samples.problems[:10]:
        print(f"problem         {problem}")
    if len(samples.problems) > 10:
        print(f"problem         and {len(samples.problems) - 10} more")
    plan = Plan(len(samples.train), min(16, len(samples.train)), 1, 1, 1)
    chosen = next(iter(TrainOrder(plan, 0, cfg.run.seed)))
    prepare = data.Prepare(samples.spec, cfg.data)
    batch = prepare(samples.train.__getitems__(chosen), True, torch.Generator().manual_seed(cfg.run.seed))
    for number, part in enumerate(batch):
        print(f"batch[{number}]        {tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}")
    try:
        view.picture(batch, samples.spec).savefig(target, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the picture {target} ({error}): give another --output") from error
    print(f"picture         {target}")


def main() -> None:
    """Read the command line: --show, --output, and the keys of a config."""
    arguments = sys.argv[1:]
    if "--show" not in arguments:
        sys.exit(f"usage: python -m {data.__name__} --show [--output FILE.png] [--config FILE.yaml] [--data.path ...]")
    arguments.remove("--show")
    target = Path("data.png")
    if "--output" in arguments[:-1]:
        place = arguments.index("--output")
        target = Path(arguments[place + 1])
        del arguments[place : place + 2]
    try:
        show(parse(data.__name__, "Say what the data are; --show, and --output for the picture.", arguments), target)
    except UserError as error:
        sys.exit(in_one_line(error))
