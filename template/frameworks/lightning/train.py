"""Train, validate, test or predict with LightningCLI: every option of the Trainer, callbacks and loggers included.

python -m <package>.train fit --config configs/default.yaml --trainer.devices 8 --model.lr 3e-4
python -m <package>.train fit --config configs/default.yaml --trainer.logger.version first
--ckpt_path last
python -m <package>.train validate --config runs/first/config.yaml --ckpt_path
runs/first/checkpoints/best.ckpt
"""

import atexit
import sys
import warnings
from typing import Any

import torch.distributed as dist
from jsonargparse import set_parsing_settings
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from torch.optim import Optimizer

from .datamodule import Data
from .errors import UserError, one_line
from .log import SaveConfig
from .model import ModelConfig
from .module import Model


class CLI(LightningCLI):
    """LightningCLI whose model takes the shapes of the data, and whose schedules advance with each optimizer step."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.spec", "model.spec", apply_on="instantiate")
        parser.link_arguments("data.source", "model.source", apply_on="instantiate")
        parser.link_arguments("seed_everything", "data.seed")
        parser.link_arguments("seed_everything", "model.seed")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse twice: first for the network's size, whose values are then the defaults."""
        words: Any = sys.argv[1:] if args is None else args
        words = [word for word in words if not word.startswith("--print_config")]
        given = parser.parse_args(words, defaults=False)
        section = f"{given.subcommand}.model.net" if "subcommand" in given else "model.net"
        network = ModelConfig(**given.get(section, {}))
        parser.set_defaults({f"{section}.{name}": value for name, value in vars(network).items()})
        super().parse_arguments(parser, args)

    def before_instantiate_classes(self) -> None:
        options = self.config[self.subcommand] if self.subcommand else self.config
        if options.get("lr_scheduler") and not options.get("optimizer"):
            raise UserError("--lr_scheduler has no effect without --optimizer: give both")
        if "ckpt_path" in options:
            options.weights_only = (
                True  # a checkpoint cannot execute code; Lightning's default trusts one from a URL
            )

    @staticmethod
    def configure_optimizers(
        lightning_module: Any, optimizer: Optimizer, lr_scheduler: Any = None
    ) -> dict[str, Any]:
        """Use what `--optimizer` and `--lr_scheduler` name; without the latter, 1cycle up to the optimizer's rate."""
        schedule = lr_scheduler or lightning_module.one_cycle(optimizer)
        # of ReduceLROnPlateau, which needs a validation in each epoch
        monitor = getattr(schedule, "monitor", None)
        found = {
            "scheduler": schedule,
            "interval": "epoch" if monitor else "step",
            "monitor": monitor,
        }
        return {"optimizer": optimizer, "lr_scheduler": found}


def main() -> None:
    """Run the subcommand of the command line."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    usual = "not have many workers|smaller than the logging interval|dirpath has changed|custom batch sampler"
    # of data in memory, rows over epochs, `validate`, `predict`
    warnings.filterwarnings("ignore", f".*({usual})")
    save = SaveConfig if "fit" in sys.argv else None
    own = {"use_distributed_sampler": False}  # the data module splits the samples over the ranks
    # Lightning destroys only NCCL's group at exit; the threads of gloo's can abort the end of
    # Python.
    atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
    with one_line():
        CLI(Model, Data, save, {"overwrite": True}, trainer_defaults=own, seed_everything_default=0)


if __name__ == "__main__":
    main()
