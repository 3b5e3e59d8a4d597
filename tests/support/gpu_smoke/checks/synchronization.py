"""Nothing in the steady state synchronizes the host with the device; a planted `.item()` does, and is found."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

from ..check import ENGINE, Check, Figures, Lab
from ..projects import Project

OPTIONS = ["--train.steps=12", "--train.eval_every=6", "--log.every=100", "--speed.precision=auto"]
"""Steps before a validation and a checkpoint, and after them."""
VARIANTS = {
    "plain": ["--loader.workers=0"],
    "accumulated": ["--loader.workers=0", "--train.accumulate=2", "--train.micro_batch=16"],
    "EMA": ["--loader.workers=0", "--train.ema=0.9"],
    "cached": ["--loader.workers=0", "--data.cache=device"],
    "fp16": ["--loader.workers=0", "--speed.precision=fp16"],
    "workers": ["--loader.workers=2"],
}


class Forbid:
    """Forbids, on the CPU, the calls that would synchronize with a device, in the steps after the third."""

    def __init__(self, mode: Any) -> None:
        self.mode, self.step, self.stack = mode, 0, ExitStack()
        self.quiet = 0
        """Steps in which they were forbidden."""

    def before_step(self, step: int) -> None:
        self.step += 1
        self.stack.close()
        if self.step > 3:
            self.stack.enter_context(self.mode)
            self.quiet += 1

    def before_log(self) -> None:
        self.stack.close()


def train_without_synchronizing(lab: Lab, project: Project, *options: str) -> None:
    """Train where a synchronization raises: in CUDA's own mode, or in a stand-in for it on the CPU."""
    if not lab.dry:
        project.train(*OPTIONS, "--debug.sync=error", *options)
        return
    forbid = project.hook(Forbid, project.module("tests.no_synchronization").NoSynchronization())
    order = project.module("loaders").TrainOrder
    indices = order.__iter__
    # The host computes the indices: before the run, so that they do not count as synchronization.
    with mock.patch.object(order, "__iter__", lambda self: iter(list(indices(self)))), forbid.stack:
        project.train(*OPTIONS, *options, hooks=[forbid])
    assert forbid.quiet == 9


def quiet(lab: Lab, model: str, variant: str) -> Figures:
    """A run without synchronization passes."""
    if variant in ("fp16", "workers"):
        lab.needs_cuda()
    train_without_synchronizing(lab, lab.project(model), *VARIANTS[variant])
    return {}


def planted_item(lab: Lab) -> Figures:
    """A `.item()` in `prepare` raises."""
    project = lab.project(ENGINE)
    with planted(project):
        try:
            train_without_synchronizing(lab, project, *VARIANTS["plain"])
        except (RuntimeError, AssertionError) as error:
            message = str(error)
        else:
            raise AssertionError("a planted .item() in each step was not found")
    assert "synchroniz" in message or "steady state calls Tensor.item" in message, message
    return {}


@contextmanager
def planted(project: Project) -> Iterator[None]:
    """Synchronize in each step."""
    prepare = project.module("data").Prepare
    forward = prepare.forward

    def synchronizing(self: Any, batch: Any, *others: Any) -> Any:
        batch[0].float().mean().item()
        return forward(self, batch, *others)

    with mock.patch.object(prepare, "forward", synchronizing):
        yield


def checks(lab: Lab) -> list[Check]:
    """Return the plain run of each model, and the variants of one."""
    named = [(model, "plain") for model in lab.models] + [(ENGINE, name) for name in VARIANTS if name != "plain"]
    found = [
        Check(f"{model}, {name}", "no synchronization", partial(quiet, model=model, variant=name))
        for model, name in named
    ]
    return [Check("planted .item()", "no synchronization", planted_item), *found]
