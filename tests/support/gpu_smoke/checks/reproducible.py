"""`debug.deterministic` finds a deterministic algorithm for each operation of the models, and repeats a run exactly."""

from functools import partial

from ..check import Check, Figures, Lab

OPTIONS = [
    "--train.steps=8",
    "--train.eval_every=8",
    "--log.every=1",
    "--train.micro_batch=16",
    "--debug.deterministic=true",
]
MODELS = {"resnet": ["--model.stem=7x7"], "unet": [], "vae": [], "diffusion": []}
"""Models with max pooling or upsampling, and options that switch them on."""


def repeats(lab: Lab, model: str) -> Figures:
    """Two runs have the same losses to the bit."""
    precision = "fp32" if lab.dry else "auto"  # torch 2.11's convolutions in bf16 on a CPU can return NaN
    options = [*OPTIONS, *MODELS[model], f"--speed.precision={precision}"]
    first, second = (lab.project(model).train(*options) for _ in range(2))
    assert first.losses == second.losses, f"losses differ by {first.differs(second):.2g}"
    return {}


def checks(lab: Lab) -> list[Check]:
    """Return a check for each of these models."""
    found = [model for model in MODELS if lab.has_project(model)]
    return [Check(f"{model}, deterministic", "debugging", partial(repeats, model=model)) for model in found]
