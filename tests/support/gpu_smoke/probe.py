"""A hook that observes a run from inside: memory, host time, kernels."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Observer:
    """A hook of a rendered project that does nothing: the base of those below.

    The projects' own `Hook` is in a package of another name in each of them, so this has its methods.
    """

    def running(self, model: nn.Module, folder: Path) -> AbstractContextManager[Any]:
        return nullcontext()

    def before_step(self) -> None:
        pass

    def after_update(self, *updates: Any) -> None:
        pass

    def before_log(self) -> None:
        pass

    def on_metrics(self, row: dict[str, float]) -> bool:
        return False

    def eval_weights(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def finish(self, *about: Any) -> None:
        pass


class Memory(Observer):
    """Bytes allocated and reserved on the device at the start of each step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.allocated: list[int] = []
        self.reserved: list[int] = []

    def before_step(self) -> None:
        if self.device.type == "cuda":
            self.allocated.append(torch.cuda.memory_allocated(self.device))
            self.reserved.append(torch.cuda.memory_reserved(self.device))
