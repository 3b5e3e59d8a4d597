"""How long a checkpoint of GPT-2 takes to save and to load."""

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from ..check import Check, Figures, Lab
from .speed import tokens

OPTIONS = ["--train.steps=2", "--train.eval_every=1000", "--train.micro_batch=1", "--log.every=1", "--data.context=64"]
OPTIONS += ["--optim.name=adamw", "--optim.lr=1e-4", "--speed.precision=auto"]


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
        project.resume(run, 2, *options, "--train.steps=3")
    size = sum(file.stat().st_size for file in (run.folder / "checkpoints").rglob("*") if file.is_file())
    return {
        "size_mb": size / 1e6,
        "save_s": seconds["save"],
        "verify_s": seconds["find"],
        "load_s": seconds["read_state"],
    }


def checks(lab: Lab) -> list[Check]:
    """Return the check of this module."""
    return [Check("checkpoint of GPT-2 124M", "checkpoint", save_and_load, 90)]
