"""Run a trained model on new inputs; `--help` describes the inputs and outputs.

python -m <package>.tools.predict runs/first --help
"""

import torch

from .. import distributed
from ..errors import UserError
from ..failure import leave
from .optional import fitting, take
from .trained_model import open_trained, parser, require_predict


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and run the task's prediction."""
    try:
        predict, add_options, about = (take("task", name) for name in ("predict", "add_options", "ABOUT"))
        options = parser("predict", about)
        add_options(options)
        args = options.parse_intermixed_args(argv)  # options may precede and follow the inputs
        with distributed.start(args.device) as world, torch.inference_mode():
            trained = require_predict(open_trained(args.path, world.device, args.precision))
            with fitting("task", "predict"):
                predict(trained, args)
    except UserError as error:
        leave(error)


if __name__ == "__main__":
    main()
