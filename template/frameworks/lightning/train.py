"""Train, validate, test or predict with LightningCLI: every option of the Trainer, callbacks and loggers included.

python -m <package>.train fit --config configs/default.yaml --trainer.devices 8 --model.lr 3e-4
python -m <package>.train fit --config configs/default.yaml --trainer.logger.version first --ckpt_path last
python -m <package>.train validate --config runs/first/config.yaml --ckpt_path runs/first/checkpoints/best.ckpt
"""

import warnings
from typing import Any

from jsonargparse import set_parsing_settings
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from torch.optim import Optimizer

from .datamodule import Data
from .errors import one_line
from .log import SaveConfig
from .module import Model


class CLI(LightningCLI):
    """LightningCLI whose model takes the shapes of the data, and whose schedules advance with each optimizer step."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.spec", "model.spec", apply_on="instantiate")
        parser.link_arguments("data.prepare", "model.prepare", apply_on="instantiate")
        parser.link_arguments("seed_everything", "data.seed")
        parser.link_arguments("seed_everything", "model.seed")

    @staticmethod
    def configure_optimizers(lightning_module: Any, optimizer: Optimizer, lr_scheduler: Any = None) -> dict[str, Any]:
        """Use what `--optimizer` and `--lr_scheduler` name; without the latter, 1cycle up to the optimizer's rate."""
        schedule = lr_scheduler or lightning_module.one_cycle(optimizer)
        monitor = getattr(schedule, "monitor", None)  # of ReduceLROnPlateau
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step", "monitor": monitor}}


def main() -> None:
    """Run the subcommand of the command line."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    warnings.filterwarnings("ignore", ".*does not have many workers")  # data in memory is fastest without
    warnings.filterwarnings("ignore", ".*is smaller than the logging interval")  # which counts steps over epochs
    warnings.filterwarnings("ignore", "The dirpath has changed")  # if a run is validated
    with one_line():
        CLI(
            Model,
            Data,
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={"use_distributed_sampler": False},  # the data module splits the samples over the ranks
            seed_everything_default=0,
        )


if __name__ == "__main__":
    main()
