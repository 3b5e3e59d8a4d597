"""fp8 layers train, are validated without gradients, and end near bf16: eager, and compiled."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn

from ..check import COLD, Check, Figures, Lab
from ..projects import Trained

OPTIONS = ["--train.steps=24", "--train.eval_every=8", "--log.every=1", "--optim.name=adamw", "--optim.lr=1e-3"]
MODES = {"eager": [], "compiled": ["--speed.compile=blocks"]}
NEAR, EFFECT = 0.05, 1e-5
"""Largest relative difference of the validation's loss from bf16's, and the least one of a training loss."""


class Converted:
    """A hook: the number of layers that compute in fp8, and whether a validation records gradients."""

    def __init__(self) -> None:
        self.layers, self.recorded = 0, False

    def running(self, model: nn.Module, folder: Path) -> AbstractContextManager[None]:
        self.layers = sum(type(layer).__name__ == "Float8Linear" for layer in model.modules())
        return nullcontext()

    def on_validation(self, results: dict[str, float], model: nn.Module) -> None:
        self.recorded = self.recorded or torch.is_grad_enabled()


@cache
def bf16(lab: Lab) -> Trained:
    """Train in bf16, once for both checks."""
    return lab.project("gpt").train(*OPTIONS, "--speed.precision=bf16")


def near_bf16(lab: Lab, mode: str) -> Figures:
    """The losses are near those in bf16, but others."""
    lab.project("gpt").config(*OPTIONS, "--speed.precision=fp8", *MODES[mode])
    lab.needs_capability((8, 9), "fp8")
    expected, converted = bf16(lab), lab.project("gpt").hook(Converted)
    run = lab.project("gpt").train(*OPTIONS, "--speed.precision=fp8", *MODES[mode], hooks=[converted])
    loss, other = run.validation["loss"], expected.validation["loss"]
    lab.figures.update(layers=converted.layers, loss_bf16=other, loss_fp8=loss, effect=run.differs(expected))
    assert converted.layers, "no layer was converted"
    assert not converted.recorded, "the validation recorded gradients, which takes memory"
    assert lab.figures["effect"] > EFFECT, "the losses are those in bf16: nothing was computed in fp8"
    assert abs(loss - other) < NEAR * other, f"a loss of {loss:.4g} after training in fp8, of {other:.4g} in bf16"
    return {}


def checks(lab: Lab) -> list[Check]:
    """Return the checks of this module."""
    return [Check(f"fp8, {mode}", "precision", partial(near_bf16, mode=mode), COLD) for mode in MODES]
