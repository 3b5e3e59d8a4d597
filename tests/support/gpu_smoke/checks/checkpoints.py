"""How long training waits for a checkpoint of GPT-2, how long a thread writes it, and that the resumed run is equal."""

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from ..check import Check, Figures, Lab
from .subjects import tokens

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
    project, seconds = lab.project("gpt"), dict[tuple[str, bool], float]()
    options = [*OPTIONS, f"--model.size={'tiny' if lab.dry else '124M'}"]
    checkpoint, saver = project.module("checkpoint"), project.module("faults.saver")

    def timed(owner: Any, name: str) -> Callable[..., Any]:
        function = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            found = function(*args, **named)
            seconds[name, owner is saver.Saver] = time.perf_counter() - started
            return found

        return call

    data = tokens(project, lab.dry, 50257, 64)  # the vocabulary has 39 of the 124 million weights
    reads: Any = {name: timed(checkpoint, name) for name in ("read_state", "find")}
    writing, waiting = (mock.patch.object(owner, "save", timed(owner, "save")) for owner in (saver, saver.Saver))
    with mock.patch.multiple(checkpoint, **reads), writing, waiting, project.replaced_data(data):
        run = project.train(*options)
        difference = project.resume(run, SAVED, *options).differs(run)
    lab.figures["difference"] = difference
    assert difference <= CLOSE, f"losses differ by {difference:.2g} from those without the interruption"
    saved = run.folder / "checkpoints" / f"step-{STEPS:08d}"
    size = sum(file.stat().st_size for file in saved.iterdir())
    return {
        "size_mb": size / 1e6,
        "wait_s": seconds["save", True],
        "save_s": seconds["save", False],
        "verify_s": seconds["find", False],
        "load_s": seconds["read_state", False],
    }


def checks(lab: Lab) -> list[Check]:
    """Return the check of this module."""
    return [Check("checkpoint of GPT-2 124M", "checkpoint", save_and_load, 90)]
