"""Lightning and Accelerate have the losses of the plain loop, in every format."""

from functools import cache, partial

import torch

from ..check import COLD, ENGINE, Check, Figures, Lab
from ..projects import Trained
from .environment import FORMATS

OPTIONS = [
    "--train.steps=20",
    "--train.eval_every=20",
    "--log.every=1",
    "--speed.cudnn_benchmark=false",
    "--optim.lr=5e-3",
]
CLOSE = 1e-4
"""Largest relative difference of a loss from the plain loop's, which has the same operations in the same order."""
EFFECT = {"bf16": CLOSE, "fp16": CLOSE, "tf32": 1e-5}
"""Least relative difference of a loss from fp32's."""


@cache
def native(lab: Lab, model: str, precision: str) -> Trained:
    """Train in the plain loop, once for all frameworks."""
    return lab.project(model).train(*OPTIONS, f"--speed.precision={precision}")


def equals_native(lab: Lab, framework: str, model: str) -> Figures:
    """The losses equal those of the plain loop; those in other formats are not fp32's, so a format has an effect."""
    torch.backends.cudnn.deterministic = True
    project = lab.project(model, framework)
    for precision in formats(lab, model):
        expected = native(lab, model, precision)
        found = project.train(*OPTIONS, f"--speed.precision={precision}").differs(expected)
        lab.figures[f"difference_{precision}"] = found
        assert found <= CLOSE, f"losses in {precision} differ by {found:.2g}"
        if precision in EFFECT:
            effect = expected.differs(native(lab, model, "fp32"))
            lab.figures[f"effect_{precision}"] = effect
            assert effect > EFFECT[precision], f"losses in {precision} are within {effect:.2g} of those in fp32"
    return {}


def formats(lab: Lab, model: str) -> list[str]:
    """Return the formats of this device; for the fastest model the shortest one only."""
    able = ["fp32", "bf16"]
    if not lab.dry:
        capability = torch.cuda.get_device_capability(lab.device)
        able = [name for name, least in FORMATS.items() if name != "fp8" and capability >= least]
    return able[-1:] if model == ENGINE else able


def checks(lab: Lab) -> list[Check]:
    """Return a check for each framework."""
    return [
        Check(f"{model} with {framework}", "frameworks", partial(equals_native, framework=framework, model=model), COLD)
        for framework in lab.frameworks
        for model in (ENGINE, "resnet")
        if lab.has_project(model, framework)
    ]
