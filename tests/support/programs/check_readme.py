"""Check the options that READMEs recommend, without training: RANKS=FOLDER [...].

The projects differ in their hardware only. Of a GPU, a stand-in, only the type is looked at. Prints what is refused,
and how many lines of options each README has.
"""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml

sys.path.insert(0, f"{sys.argv[1].partition('=')[2]}/src")
names = ["config", "data", "distributed", "errors", "loaders", "model", "optim", "speed", "techniques"]
config, data, distributed, errors, loaders, model, optim, speed, techniques = (
    importlib.import_module(f"proj.{name}") for name in names
)
fsdp: Any = importlib.import_module("proj.techniques.fsdp")


class AcceptedError(Exception):
    """Raised where the model would be sharded."""


def with_option(cfg: Any, option: str, value: str) -> Any:
    name, key = option.removeprefix("--").split(".")
    return replace(cfg, **{name: replace(getattr(cfg, name), **{key: yaml.safe_load(value)})})


def build(cfg: Any, dataset: Any, world: Any) -> None:
    """Build what `parts.build` does, as far as that needs no device."""
    precision = speed.Precision("fp32" if cfg.speed.precision == "auto" else cfg.speed.precision, world.device)
    plan = loaders.Plan.make(cfg.train, len(dataset.train), world.world_size)
    net = model.build(cfg.model, dataset.spec)
    techniques.check(cfg, plan.accumulate, precision, world)
    net = techniques.change_model(net, net, cfg, precision, world)
    techniques.build_optimizer(net, cfg.optim)
    techniques.build_schedule(cfg.optim, optim.peak_lr(cfg.optim, plan.global_batch), plan.total_steps)(0)


def refusal(cfg: Any, options: list[str], dataset: Any, world: Any) -> str:
    """Return why the options are refused; empty if they are not."""
    try:
        for option, value in zip(options[::2], options[1::2], strict=True):
            cfg = with_option(cfg, option, value)
        build(cfg, dataset, world)
    except AcceptedError:
        return ""
    except errors.UserError as error:
        return str(error)
    return ""


def main(*arguments: str) -> None:
    """Check each project."""
    parser, dataset = config.make_parser("proj.train", ""), None
    for argument in arguments:
        ranks, _, folder = argument.partition("=")
        cfg = config.read(parser, [f"--config={folder}/configs/default.yaml"])
        dataset = dataset or data.load(cfg.data)
        device = torch.device("cpu") if cfg.run.device == "auto" else torch.device("cuda", 0)
        world = distributed.World(0, int(ranks), device)
        small = "larger than the" in refusal(cfg, [], dataset, world)  # the data, for so many ranks
        lines = re.findall(r"^(--[^#]*)", Path(folder, "README.md").read_text(), re.MULTILINE)
        for options in map(str.split, lines):
            why = refusal(cfg, options, dataset, world)
            if why and not (small and "larger than the" in why):
                print(f"{' '.join(options)}: {why}")
        print(f"{len(lines)} lines")


with mock.patch.object(fsdp, "init_device_mesh", side_effect=AcceptedError), mock.patch("torch.nn.Module.compile"):
    main(*sys.argv[1:])
