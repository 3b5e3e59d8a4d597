"""`debug.deterministic` finds a deterministic algorithm for each operation of the models, and repeats a run exactly."""

from functools import partial

from ..check import Check, Figures, Lab

OPTIONS = [
    "--train.steps=8",
    "--train.eval_every=8",
    "--log.every=1",
    "--train.micro_batch=16",
    "--speed.precision=auto",
]
OPTIONS += ["--debug.deterministic=true"]
MODELS = {"resnet": ["--model.stem=7x7"], "unet": [], "vae": []}
"""Models with max pooling or upsampling, and options that switch them on."""


def repeats(lab: Lab, model: str) -> Figures:
    """Two runs have the same losses to the bit."""
    first, second = (lab.project(model).train(*OPTIONS, *MODELS[model]) for _ in range(2))
    assert first.losses == second.losses, f"losses differ by {first.differs(second):.2g}"
    return {}


def checks(lab: Lab) -> list[Check]:
    """Return a check for each of these models."""
    found = [model for model in MODELS if lab.has_project(model)]
    return [Check(f"{model}, deterministic", "debugging", partial(repeats, model=model)) for model in found]
