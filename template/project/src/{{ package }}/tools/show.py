"""Say what the data are, and draw one prepared batch of them.

python -m <package>.data --show --config configs/default.yaml
python -m <package>.data --show --data.path my/files --output data.png
"""

import argparse
import sys
from pathlib import Path

import torch

from .. import data
from ..config import Config, parse
from ..errors import UserError, in_one_line
from ..loaders import Plan, TrainOrder
from . import view
from .atomic_file import whole


def show(cfg: Config, target: Path) -> None:
    """Print counts, shapes and problems, and draw the first batch of training.

    Raises:
        UserError: the data cannot be read, or the picture cannot be written.
    """
    if target.suffix.lower() != ".png":
        raise UserError(f"--output {target}: its name must end with .png")
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
    with whole(target) as file:
        view.picture(batch, samples.spec).savefig(file, dpi=120)
    print(f"picture         {target}")


def main(argv: list[str] | None = None) -> None:
    """Read the command line: --show, --output, and the keys of a config."""
    options = argparse.ArgumentParser(
        prog=f"python -m {data.__name__}",
        usage="%(prog)s --show [--output FILE.png] [--config FILE.yaml] [--data.path ...]",
        add_help=False,  # --help is the config's, which has all keys
        allow_abbrev=False,
    )
    options.add_argument("--show", action="store_true", required=True)
    options.add_argument("--output", type=Path, default=Path("data.png"))
    args, keys = options.parse_known_args(argv)
    try:
        show(parse(data.__name__, "Say what the data are; --show, and --output for the picture.", keys), args.output)
    except UserError as error:
        sys.exit(in_one_line(error))
