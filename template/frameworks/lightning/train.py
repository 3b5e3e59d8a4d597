"""Train, validate, test or predict with LightningCLI and every option of the Trainer.

python -m <package>.train fit --config configs/default.yaml --trainer.devices 8 --model.lr 3e-4
python -m <package>.train fit --config configs/default.yaml --trainer.logger.version first
--ckpt_path last
python -m <package>.train validate --config runs/first/config.yaml --ckpt_path
runs/first/checkpoints/best.ckpt
"""

import atexit
import os
import pickle
import re
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from itertools import islice, pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_type_hints

import torch
import torch.distributed as dist
import yaml
from jsonargparse import Namespace, get_loader, set_loader, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_info
from torch.optim import Optimizer

from .config_base import alternatives, contains, is_folder_name
from .config_files import SHOW, as_text, explain, flat, load, meant
from .data import DataConfig
from .datamodule import Data
from .errors import UserError, all_ranks, launched_rank, one_line, second_signal_ends
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
SECTIONS = ("model", "data", "trainer")
INTERVALS = {
    "seed_everything": "[0, 4294967295]",
    "data.batch_size": "[1, inf)",
    "data.num_workers": "[0, inf)",
    "data.timeout": "(0, inf)",
    "model.lr": "(0, inf)",
    "model.weight_decay": "[0, inf)",
    "model.beta2": "[0, 1)",
    "model.pct_start": "(0, 1)",
    "model.div_factor": "[1, inf)",
    "trainer.accumulate_grad_batches": "[1, inf)",
    "trainer.gradient_clip_val": "[0, inf)",
    "trainer.log_every_n_steps": "[1, inf)",
    "trainer.val_check_interval": "(0, inf)",
}
"""Of options, as Lightning's parser knows no ranges."""

read_yaml = get_loader("yaml")


class CLI(LightningCLI):
    """LightningCLI with the sizes of model.py, and the `Spec` of a checkpoint."""

    def init_parser(self, **options: Any) -> LightningArgumentParser:
        set_loader("yaml", read_config, (yaml.YAMLError,))
        return super().init_parser(exit_on_error=False, allow_abbrev=False, **options)

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
        given_words: Any = sys.argv[1:] if args is None else args
        every_word = command_line_last(given_words)
        words = [word for word in every_word if not word.startswith("--print_config")]
        check_words(words)
        given = parser.parse_args(words, defaults=False)
        section = f"{given.subcommand}.model" if "subcommand" in given else "model"
        names = {field.name for field in fields(ModelConfig)}
        options: Any = given.get(section, {})
        network = ModelConfig(**{name: options[name] for name in names if name in options})
        parser.set_defaults({f"{section}.{name}": value for name, value in vars(network).items()})
        command = given.get("subcommand")
        path = given.get(f"{command}.ckpt_path")
        if path is not None and Path(path).is_file():
            checkpoint = load_checkpoint(path)
            if command != "fit":
                rank_zero_info(f"checkpoint: {describe(checkpoint)}")
        self.config = parser.parse_args(every_word)
        check_values(self.config[command] if command else self.config)

    def before_instantiate_classes(self) -> None:
        options = self.config[self.subcommand] if self.subcommand else self.config
        if options.get("lr_scheduler") and not options.get("optimizer"):
            raise UserError("--lr_scheduler has no effect without --optimizer: give both")
        if "ckpt_path" in options:
            # a checkpoint cannot execute code; Lightning's default trusts one from a URL
            options.weights_only = True
        Data.saved_spec = saved_spec(options)
        last = run_folder(options) / "checkpoints/last.ckpt"
        saves = self.subcommand == "fit" and not options.trainer.fast_dev_run
        # SLURM starts a requeued job by the same command
        starts_anew = saves and not options.ckpt_path and "SLURM_JOB_ID" not in os.environ
        if starts_anew and last.exists():
            resume = "resume it with --ckpt_path last"
            raise UserError(f"{last} exists: {resume}, or use another trainer.logger.version")
        torch.set_float32_matmul_precision(options.float32_matmul_precision)
        torch.backends.cudnn.allow_tf32 = options.float32_matmul_precision != "highest"

    def instantiate_trainer(self, **options: Any) -> Trainer:
        try:
            return super().instantiate_trainer(**options)
        except (MisconfigurationException, TypeError, ValueError) as error:
            raise UserError(" ".join(str(error).split())) from None

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
        checkpoints = run_folder(options).glob("checkpoints/last*.ckpt")
        path = max(checkpoints, key=lambda file: file.stat().st_mtime, default=None)
    if path is None or not Path(path).is_file():
        return None
    spec: dict[str, Any] = load_checkpoint(path)["Data"]["spec"]
    return spec


def run_folder(options: Namespace) -> Path:
    """Return the folder of the run that the logger has as its version."""
    logger: Any = options.get("trainer.logger.init_args") or {}
    return Path(logger.get("save_dir", ""), logger.get("name") or "", f"{logger.get('version')}")


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return a checkpoint of this project; its tensors are read where they are used."""
    try:
        checkpoint: dict[str, Any] = torch.load(path, mmap=True, weights_only=True)
    except (EOFError, KeyError, OSError, RuntimeError, ValueError, pickle.UnpicklingError):
        raise UserError(f"{path} is damaged: give another checkpoint as --ckpt_path") from None
    if "Data" not in checkpoint:
        raise UserError(f"{path} is no checkpoint of this project: give another as --ckpt_path")
    return checkpoint


def describe(checkpoint: dict[str, Any]) -> str:
    """Return the step of a checkpoint, and the validation results of its callbacks."""
    line = f"step {checkpoint['global_step']:,}"
    for state in checkpoint.get("callbacks", {}).values():
        if state.get("monitor") and state.get("current_score") is not None:
            line += f", with {state['monitor']} {float(state['current_score']):.4g}"
    return line


def read_config(text: str, path: str = "") -> Any:
    """Return what a text has in YAML; of a file at a path, without the sections that are empty."""
    value = read_yaml(text)
    if not path:
        return value
    if value is None or value == text:  # jsonargparse reads `data:` as text
        return {}
    return {name: keys for name, keys in value.items() if keys is not None or name not in SECTIONS}


def command_line_last(words: list[str]) -> list[str]:
    """Return the words of a subcommand so that its own options override those of its files."""
    if not words or words[0].startswith("-"):
        return words
    files = []
    options = []
    rest = iter(words[1:])
    for word in rest:
        if word.startswith("-c"):  # short for --config; -c=FILE and -cFILE are possible
            file = word[2:].removeprefix("=")
            word = f"--config={file}" if file else "--config"
        if word.startswith("--config"):
            files += [word] if "=" in word else [word, *islice(rest, 1)]
        else:
            options.append(word)
    return [words[0], *files, *options, *turned_off(options)]


def turned_off(options: list[str]) -> list[str]:
    """Return the one of `max_epochs` and `max_steps` that the other one turns off in a file."""
    given = {}
    for word, following in pairwise([*options, ""]):
        name, equals, value = word.partition("=")
        given[name] = value if equals else following
    for name, other in (("max_epochs", "max_steps"), ("max_steps", "max_epochs")):
        has_limit = given.get(f"--trainer.{name}", "-1") not in ("-1", "null")
        if has_limit and f"--trainer.{other}" not in given:
            return [f"--trainer.{other}=-1"]
    return []


def check_words(words: list[str]) -> None:
    """Refuse a misread value, on the command line or in a file, and a section that stands twice."""
    types = option_types()
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            value = following
        given = {name: value} if name in types else {}
        place = ""
        if word.startswith("--config"):
            sections = load(value)
            place = f" in {value}"
            given = flat({name: sections[name] for name in SECTIONS if name in sections}, place)
        for name, value in given.items():
            try:
                as_text(value, types.get(name, str))
            except ValueError as error:
                raise UserError(f"{name} {error}{place}") from None


def check_values(options: Namespace) -> None:
    """Refuse values that the parser accepts, and the Trainer refuses late or not at all."""
    for name, kind in option_types().items():
        if options.get(name, 0) is None and NoneType not in alternatives(kind):
            raise UserError(f"{name} needs a value, not null")
    for name, interval in INTERVALS.items():
        value = options.get(name)
        if isinstance(value, int | float) and not contains(interval, value):
            raise UserError(f"{name} is {value}: it must be in {interval}")
    version = options.get("trainer.logger.init_args.version")
    if isinstance(version, str) and not is_folder_name(version):
        wrong = "it must be the name of a folder in trainer.logger.save_dir"
        raise UserError(f"trainer.logger.version is {version}: {wrong}")


def option_types() -> dict[str, Any]:
    """Return the types of the options of model, data and trainer."""
    sources: dict[str, list[Any]] = {
        "trainer": [Trainer.__init__],
        "model": [Model.__init__, ModelConfig],
        "data": [Data.__init__, DataConfig],
    }
    types: dict[str, Any] = {"seed_everything": int}
    for section, kinds in sources.items():
        for kind in kinds:
            types |= {f"{section}.{name}": hint for name, hint in get_type_hints(kind).items()}
    return types


def explain_arguments(error: ArgumentError) -> str:
    """Return the line of a parser's error; of an unknown option, which one is close."""
    types = option_types()
    line = explain(error, types)
    unknown = re.match(r"(?:unrecognized arguments: --|.* does not accept option ')([\w.]+)", line)
    if unknown is None:
        return line
    return f"unrecognized arguments: --{unknown[1]}; see fit --help.{meant(unknown[1], types)}"


def main() -> None:
    """Run the subcommand of the command line."""
    shows = any(word.startswith(SHOW) for word in sys.argv)
    # 1 s: not for a training
    set_parsing_settings(docstring_parse_attribute_docstrings=shows)
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", f"[\\s\\S]*{message}")
    # Lightning destroys NCCL's group alone at exit; gloo's threads can abort the end of Python
    atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
    with one_line(), second_signal_ends():
        try:
            with nullcontext() if shows else other_ranks():
                run()
        except ArgumentError as error:
            raise UserError(explain_arguments(error)) from None
        except ValueError as error:
            if "val_check_interval" not in str(error):
                raise
            raise UserError(" ".join(str(error).split())) from None
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            raise UserError("--ckpt_path has other weights than model.py") from None


@contextmanager
def other_ranks() -> Iterator[None]:
    """Wait for the other ranks, and let this one not end before it has joined them.

    A launcher ends the others only after an error. Lightning starts its own ranks without RANK.
    """
    ranks: AbstractContextManager[Any] = nullcontext()
    if "NODE_RANK" not in os.environ:
        rank, size, _ = launched_rank()
        if size > 1:
            ranks = all_ranks(rank, size)
    try:
        with ranks:
            yield
    except SystemExit as end:
        others_wait = os.environ.get("WORLD_SIZE", "1") != "1" and not dist.is_initialized()
        if end.code or not others_wait:
            raise
        early = "this rank ends before it has joined the others"
        raise UserError(f"{early}: look for an exit in data.py or model.py") from None


def run() -> None:
    """Run LightningCLI."""
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
