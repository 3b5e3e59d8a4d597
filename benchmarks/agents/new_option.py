"""Add an option with a range, whose noise comes from the generator that Prepare is given."""

from pathlib import Path

import torch
from common import Project, are_close, expect, losses
from torch import Tensor

MODEL = "mlp"
SHORT = ("--train.steps=6", "--train.eval_every=3", "--log.every=1", "--speed.precision=fp32")


def prepare(folder: Path) -> None:
    """Change nothing."""


def check(project: Project) -> None:
    """Look at prepared batches, at what is refused, and at a run with 0."""
    expect(not project.refuses("--data.noise=0.5"), "--data.noise=0.5 is refused")
    for value in ("-0.1", "nan", "much"):
        expect(project.refuses(f"--data.noise={value}"), f"--data.noise={value} is not refused")
    _, text, _ = project.program("train", "--help")
    about = text.partition("--data.noise")[2].split("\n  --")[0]
    expect(len(about.split()) > 6, "--help does not describe the option")

    train_set, _, _ = project.load()
    rows = project.whole_batch(train_set)[0]
    before = torch.get_rng_state()
    noisy = numbers(project, 0.5, training=True)
    expect(torch.equal(torch.get_rng_state(), before), "the noise has global random numbers")
    std = (noisy - rows).std().item()
    expect(0.45 < std < 0.55, f"the noise of 0.5 has a standard deviation of {std:.3f}")
    expect(torch.equal(noisy, numbers(project, 0.5, training=True)), "the noise is not repeatable")
    same = torch.equal(numbers(project, 0.5, training=False), rows)
    expect(same, "validation has noise too")

    run = project.train(*SHORT)
    reference = project.reference_run(MODEL, *SHORT)
    same = are_close(losses(run, "val"), losses(reference, "val"))
    expect(same, "training without noise has changed")
    noisy_run = project.train(*SHORT, "--data.noise=0.5")
    changed = not are_close(losses(noisy_run, "train"), losses(run, "train"))
    expect(changed, "training with noise is the same as without")
    project.run_tests()


def numbers(project: Project, noise: float, training: bool) -> Tensor:
    """Return the numbers of the training rows as Prepare returns them."""
    option = f"--data.noise={noise}"
    train_set, _, spec = project.load(option)
    prepare_batch = project.module("data").Prepare(spec, project.config(option).data)
    generator = torch.Generator().manual_seed(7)
    prepared: Tensor = prepare_batch(project.whole_batch(train_set), training, generator)[0]
    return prepared
