"""The last batch of a validation, which is smaller than the others, does not take long each time.

An attention or convolution of a new shape may need a new plan from cuDNN.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..check import Check, Figures, Lab

OPTIONS = ["--train.steps=2", "--train.eval_every=1", "--speed.precision=bf16"]
SLOWER, NOISE = 3, 0.1
"""Factor by which the second validation may take longer than the first, and seconds in addition."""


class Batches:
    """A hook: samples and seconds of each batch, by validation."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.began = device, 0.0
        self.validations: list[list[tuple[int, float]]] = [[]]

    @contextmanager
    def running(self, model: nn.Module, folder: Path) -> Iterator[None]:
        with model.register_forward_pre_hook(self.begin), model.register_forward_hook(self.end):
            yield

    def begin(self, model: nn.Module, batch: tuple[Any, ...]) -> None:
        self.began = self.now()

    def end(self, model: nn.Module, batch: tuple[Any, ...], output: object) -> None:
        if not model.training:
            self.validations[-1].append((len(batch[0]), self.now() - self.began))

    def on_validation(self, results: object, model: object) -> None:
        self.validations.append([])

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def last_batches(lab: Lab, model: str) -> Figures:
    """The second validation takes no longer than the first, which chooses kernels."""
    project = lab.project(model)
    watch = project.hook(Batches, lab.device)
    project.train(*OPTIONS, hooks=[watch], whole_validation=True)
    first, second, _ = watch.validations
    largest, (samples, last) = second[0][0], second[-1]
    assert 0 < samples < largest, f"the last batch of {samples} samples is no smaller than the others"
    seconds = [sum(taken for _, taken in batches) for batches in (first, second)]
    full = statistics.median(taken for size, taken in second if size == largest)
    lab.figures.update(first_s=seconds[0], second_s=seconds[1], full_batch_us=1e6 * full, last_batch_us=1e6 * last)
    assert seconds[1] <= SLOWER * seconds[0] + NOISE, "the second validation takes longer than the first"
    return {}


def checks(lab: Lab) -> list[Check]:
    """Return a check for each model with attention that the sizes of batches may change."""
    return [
        Check(f"{model}, last batches", "validation", partial(last_batches, model=model))
        for model in ("vit", "gpt")
        if lab.has_project(model)
    ]
