"""Use a trained model on new inputs; `--help` says what it takes and gives.

python -m <package>.tools.predict runs/first --help
"""

import torch

from .. import distributed
from ..errors import UserError, in_one_line
from . import task
from .trained_model import for_use, open_trained, parser


def main(argv: list[str] | None = None) -> None:
    """Read the command line, then do what the task does."""
    options = parser("predict", task.ABOUT)
    task.add_options(options)
    args = options.parse_intermixed_args(argv)  # options may stand before, between and after the inputs
    try:
        with distributed.start(args.device) as world, torch.inference_mode():
            task.predict(for_use(open_trained(args.path, world.device, args.precision)), args)
    except UserError as error:
        distributed.leave(in_one_line(error))


if __name__ == "__main__":
    main()
