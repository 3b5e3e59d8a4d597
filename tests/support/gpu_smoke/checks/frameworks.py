"""Lightning and Accelerate have the losses of the plain loop, in every format."""

from functools import partial

import torch

from ..check import ENGINE, Check, Figures, Lab
from .environment import FORMATS

OPTIONS = [
    "--train.steps=20",
    "--train.eval_every=20",
    "--log.every=1",
    "--speed.cudnn_benchmark=false",
    "--optim.lr=1e-3",
]
CLOSE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 2e-2, "fp16": 2e-2}
"""Largest relative difference of a loss."""


def equals_native(lab: Lab, framework: str, model: str) -> Figures:
    """The losses equal those of the plain loop."""
    figures: Figures = {}
    for precision, close in CLOSE.items():
        if lab.dry and precision != "fp32":
            continue
        if not lab.dry and torch.cuda.get_device_capability(lab.device) < FORMATS[precision]:
            continue
        options = [*OPTIONS, f"--speed.precision={precision}"]
        native = lab.project(model).train(*options)
        found = lab.project(model, framework).train(*options).differs(native)
        assert found <= close, f"losses in {precision} differ by {found:.2g}"
        figures[f"difference_{precision}"] = found
    return figures


def checks(lab: Lab) -> list[Check]:
    """Return a check for each framework."""
    return [
        Check(f"{model} with {framework}", "frameworks", partial(equals_native, framework=framework, model=model))
        for framework in lab.frameworks
        for model in (ENGINE, "resnet")
        if lab.has_project(model, framework)
    ]
