"""Run a trained model on new inputs; `--help` describes the inputs and outputs.

python -m <package>.tools.predict runs/first --help
"""

import torch

from .. import distributed
from ..errors import UserError
from ..failure import leave
from . import task
from .trained_model import open_trained, parser, require_predict


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and run the task's prediction."""
    options = parser("predict", task.ABOUT)
    task.add_options(options)
    args = options.parse_intermixed_args(argv)  # options may precede and follow the inputs
    try:
        with distributed.start(args.device) as world, torch.inference_mode():
            task.predict(require_predict(open_trained(args.path, world.device, args.precision)), args)
    except UserError as error:
        leave(error)


if __name__ == "__main__":
    main()
