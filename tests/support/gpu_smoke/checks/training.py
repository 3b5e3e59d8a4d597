"""Each model learns in the format that this device prefers, in constant memory."""

from functools import partial

import torch

from ..check import Check, Figures, Lab

STEPS = 30
OPTIONS = [f"--train.steps={STEPS}", f"--train.eval_every={STEPS}", "--log.every=6"]
SETTLED = 10
"""Steps after which memory no longer grows."""
GROWTH, SEGMENTS = 2**20, 2**25
"""Bytes by which allocated and reserved memory may grow: metrics until they are logged, batches on their way."""
SHARE = 0.5
"""Fraction of the fall in loss on the CPU in fp32 that the device must reach: random numbers differ between them."""


class Memory:
    """Bytes allocated and reserved on the device at the start of each step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.allocated: list[int] = []
        self.reserved: list[int] = []

    def before_step(self, step: int) -> None:
        if self.device.type == "cuda":
            self.allocated.append(torch.cuda.memory_allocated(self.device))
            self.reserved.append(torch.cuda.memory_reserved(self.device))


def learns(lab: Lab, model: str) -> Figures:
    """The loss falls as it does in fp32 on the CPU, from the same weights, and memory stays constant."""
    project = lab.project(model)
    memory = project.hook(Memory, lab.device)
    losses = project.train(*OPTIONS, "--speed.precision=auto", hooks=[memory]).losses
    seed = ["--run.seed=1"] * lab.dry  # shows how far random numbers change it
    expected = project.on_cpu().train(*OPTIONS, "--speed.precision=fp32", *seed).losses
    fall, least = losses[0] - losses[-1], SHARE * (expected[0] - expected[-1])
    assert fall > least > 0, f"the loss fell from {losses[0]:.4g} to {losses[-1]:.4g}, on the CPU to {expected[-1]:.4g}"
    figures: Figures = {"first_loss": losses[0], "last_loss": losses[-1], "last_loss_cpu": expected[-1]}
    if memory.allocated:
        for kind, bytes_, most in (("allocated", memory.allocated, GROWTH), ("reserved", memory.reserved, SEGMENTS)):
            grown = max(bytes_[SETTLED:]) - bytes_[SETTLED]
            assert grown <= most, f"{grown} bytes more are {kind} than after step {SETTLED}"
        figures["memory_mb"] = max(memory.reserved) / 1e6
    return figures


def checks(lab: Lab) -> list[Check]:
    """Return a check for each model."""
    return [Check(f"{model} learns", "training", partial(learns, model=model)) for model in lab.models]
