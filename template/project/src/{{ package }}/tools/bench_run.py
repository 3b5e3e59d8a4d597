"""The training command after changes that no option makes, for `bench`: what a project without a technique would do.

    BENCH_CHANGES=per_sample+bias python -m <package>.tools.bench_run --config configs/default.yaml

A change is one of those in CHANGES, or a function of another module, such as `my_changes.slow`.
"""

import copy
import importlib
import os
import runpy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import data as data_module
from .. import model as model_module
from ..contracts import map_tensors

VARIABLE = "BENCH_CHANGES"
data: Any = data_module
model: Any = model_module


class PerSample:
    """A dataset that returns one sample at a time, from which a collate function makes batches."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: int) -> Any:
        return map_tensors(lambda part: part[0], self.whole.__getitems__([index]))

    def __getattr__(self, name: str) -> Any:
        if name == "whole" or name.startswith("__"):  # a copy is not filled yet
            raise AttributeError(name)
        return getattr(self.whole, name)


def per_sample() -> None:
    """Let the training set return single samples."""
    load = data.load

    def changed(cfg: Any) -> Any:
        found = copy.copy(load(cfg))
        object.__setattr__(found, "train", PerSample(found.train))  # it may be frozen
        return found

    data.load = changed


def bias() -> None:
    """Give every convolution a bias."""
    build = model.build

    def changed(*arguments: Any) -> nn.Module:
        built: nn.Module = build(*arguments)
        for part in unbiased(built):
            part.bias = nn.Parameter(torch.zeros(part.out_channels))
        return built

    model.build = changed


def unbiased(built: nn.Module) -> list[Any]:
    """Return the convolutions without a bias."""
    return [part for part in built.modules() if is_convolution(part) and part.bias is None]


def is_convolution(part: nn.Module) -> bool:
    """Whether it is a convolution, of any number of dimensions."""
    return isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def autograd() -> None:
    """Let validation record what a backward pass needs."""
    changed: Any = torch
    changed.inference_mode = lambda mode=True: torch.enable_grad()


CHANGES: dict[str, Callable[[], None]] = {"per_sample": per_sample, "bias": bias, "autograd": autograd}


def main() -> None:
    """Make the changes, and train: all that follows finds the changed functions."""
    for name in filter(None, os.environ.get(VARIABLE, "").split("+")):
        module, _, function = name.rpartition(".")
        change = getattr(importlib.import_module(module), function) if module else CHANGES[name]
        change()
    # Not as `__main__` of sys: several ranks are started with that one's name.
    runpy.run_module(f"{__package__.rpartition('.')[0]}.train", run_name="__main__")


if __name__ == "__main__":
    main()
