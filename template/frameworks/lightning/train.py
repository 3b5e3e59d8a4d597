"""Train, validate, test or predict with LightningCLI and every option of the Trainer.

python -m <package>.train fit --config configs/default.yaml --trainer.devices 8 --model.lr 3e-4
python -m <package>.train fit --config configs/default.yaml --trainer.logger.version first
--ckpt_path last
python -m <package>.train validate --config runs/first/config.yaml --ckpt_path
runs/first/checkpoints/best.ckpt
"""

import atexit
import os
import sys
import warnings
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from jsonargparse import Namespace, set_parsing_settings
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from torch.optim import Optimizer

from .config_files import load
from .datamodule import Data
from .errors import UserError, launched_rank, one_line
from .log import RunLog
from .model import ModelConfig
from .module import Model

EXPECTED_WARNINGS = (
    "not have many workers",  # data in memory needs none
    "smaller than the logging interval",  # rows continue over epochs
    "dirpath has changed",  # of `validate`
    "custom batch sampler",  # of `predict`
    "dataloader is not resumable",  # the data module is
    "accumulate the metric across devices",  # Means does
)


class CLI(LightningCLI):
    """LightningCLI with the sizes of model.py, and the `Spec` of a checkpoint."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data", "model.data", apply_on="instantiate")
        parser.add_argument(
            "--float32_matmul_precision",
            type=Literal["highest", "high", "medium"],
            default="highest",
            help="Precision of matrix products and convolutions in fp32; high: TF32 on GPUs.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse twice: first for the network's size, whose values are then the defaults."""
        words: Any = sys.argv[1:] if args is None else args
        words = [word for word in words if not word.startswith("--print_config")]
        for word, following in pairwise([*words, ""]):
            file = following if word == "--config" else word.removeprefix("--config=")
            if word.startswith("--config") and Path(file).is_file():
                load(file)  # refuses a section that stands twice
        given = parser.parse_args(words, defaults=False)
        section = f"{given.subcommand}.model" if "subcommand" in given else "model"
        names = {field.name for field in fields(ModelConfig)}
        options: Any = given.get(section, {})
        network = ModelConfig(**{name: options[name] for name in names if name in options})
        parser.set_defaults({f"{section}.{name}": value for name, value in vars(network).items()})
        super().parse_arguments(parser, args)

    def before_instantiate_classes(self) -> None:
        options = self.config[self.subcommand] if self.subcommand else self.config
        if options.get("lr_scheduler") and not options.get("optimizer"):
            raise UserError("--lr_scheduler has no effect without --optimizer: give both")
        if "ckpt_path" in options:
            # a checkpoint cannot execute code; Lightning's default trusts one from a URL
            options.weights_only = True
        Data.saved_spec = saved_spec(options)
        torch.set_float32_matmul_precision(options.float32_matmul_precision)
        torch.backends.cudnn.allow_tf32 = options.float32_matmul_precision != "highest"

    @staticmethod
    def configure_optimizers(
        lightning_module: Any, optimizer: Optimizer, lr_scheduler: Any = None
    ) -> dict[str, Any]:
        """Advance `--lr_scheduler` with each step; without it, use 1cycle.

        ReduceLROnPlateau advances with each epoch.
        """
        schedule = lr_scheduler or lightning_module.one_cycle(optimizer)
        monitor = getattr(schedule, "monitor", None)
        interval = "epoch" if monitor else "step"
        options = {"scheduler": schedule, "interval": interval, "monitor": monitor}
        return {"optimizer": optimizer, "lr_scheduler": options}


def saved_spec(options: Namespace) -> dict[str, Any] | None:
    """Return the `Spec` in the checkpoint that will be loaded, if there is one."""
    path = options.get("ckpt_path")
    if path == "last":
        logger: Any = options.get("trainer.logger.init_args") or {}
        folder = Path(
            logger.get("save_dir", ""), logger.get("name") or "", f"{logger.get('version')}"
        )
        checkpoints = folder.glob("checkpoints/last*.ckpt")
        path = max(checkpoints, key=lambda file: file.stat().st_mtime, default=None)
    if path is None or not Path(path).is_file():
        return None
    try:
        checkpoint = torch.load(path, mmap=True, weights_only=True)
    except (EOFError, OSError, RuntimeError):
        raise UserError(f"{path} is damaged: give another checkpoint as --ckpt_path") from None
    spec: dict[str, Any] | None = checkpoint.get("Data", {}).get("spec")
    return spec


def main() -> None:
    """Run the subcommand of the command line."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", f"[\\s\\S]*{message}")
    # Lightning destroys NCCL's group alone at exit; gloo's threads can abort the end of Python
    atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
    with one_line():
        if "NODE_RANK" not in os.environ:  # of ranks that Lightning starts itself, without RANK
            launched_rank()
        CLI(
            Model,
            Data,
            save_config_callback=RunLog if "fit" in sys.argv else None,
            save_config_kwargs={"overwrite": True},
            # the data module splits the samples over the ranks
            trainer_defaults={"use_distributed_sampler": False},
            seed_everything_default=0,
        )


if __name__ == "__main__":
    main()
