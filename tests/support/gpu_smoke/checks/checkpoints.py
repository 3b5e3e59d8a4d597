"""How long a checkpoint of GPT-2 takes to save and to load, and that the resumed run continues the same way."""

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from ..check import Check, Figures, Lab
from .speed import tokens

SAVED, STEPS = 3, 6
OPTIONS = [
    f"--train.steps={STEPS}",
    f"--checkpoint.every={SAVED}",
    "--train.eval_every=1000",
    "--train.micro_batch=1",
    "--log.every=1",
    "--data.context=64",
]
OPTIONS += ["--optim.name=adamw", "--optim.lr=1e-3", "--speed.precision=auto"]
CLOSE = 1e-4
"""Largest relative difference of a loss: attention sums its gradients in any order."""


def save_and_load(lab: Lab) -> Figures:
    """Save and resume a model of 124 million parameters."""
    project, seconds = lab.project("gpt"), dict[str, float]()
    options = [*OPTIONS, f"--model.size={'tiny' if lab.dry else '124M'}"]
    checkpoint = project.module("checkpoint")

    def timed(name: str) -> Callable[..., Any]:
        function = getattr(checkpoint, name)

        def call(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            found = function(*args, **named)
            seconds[name] = time.perf_counter() - started
            return found

        return call

    data = tokens(project, lab.dry, 50257, 64)  # the vocabulary has 39 of the 124 million weights
    timing = mock.patch.multiple(checkpoint, save=timed("save"), read_state=timed("read_state"), find=timed("find"))
    with timing, project.replaced_data(data):
        run = project.train(*options)
        difference = project.resume(run, SAVED, *options).differs(run)
    assert difference <= CLOSE, f"losses differ by {difference:.2g} from those without the interruption"
    saved = run.folder / "checkpoints" / f"step-{STEPS:08d}"
    size = sum(file.stat().st_size for file in saved.iterdir())
    return {
        "difference": difference,
        "size_mb": size / 1e6,
        "save_s": seconds["save"],
        "verify_s": seconds["find"],
        "load_s": seconds["read_state"],
    }


def checks(lab: Lab) -> list[Check]:
    """Return the check of this module."""
    return [Check("checkpoint of GPT-2 124M", "checkpoint", save_and_load, 90)]
