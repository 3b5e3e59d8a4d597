"""Add EMA, and prove that it acts."""

from pathlib import Path

import torch
from common import NAME, Project, are_close, expect, losses

MODEL = "mlp"
SHORT = ("--train.steps=20", "--train.eval_every=10", "--log.every=2", "--speed.precision=fp32")


def prepare(folder: Path) -> None:
    """Change nothing."""


def check(project: Project) -> None:
    """Compare with a run of a project without EMA, and look at the solver's runs."""
    folders = [project.original / "runs" / name for name in ("with", "without")]
    for folder in folders:
        expect((folder / "metrics.jsonl").exists(), f"there is no run runs/{folder.name}")
    compare(*folders)
    run = project.train(*SHORT)
    compare(run, project.reference_run(MODEL, *SHORT))
    world = project.module("distributed").World(0, 1, torch.device("cpu"))
    evaluated = project.module("evaluate").evaluate_run(run, world)["loss"]
    best = min(losses(run, "val"))
    expect(abs(evaluated - best) < 1e-6, f"{NAME}.evaluate has a loss of {evaluated}, not {best}")


def compare(run: Path, without: Path) -> None:
    """Check that two runs trained alike, and validated other weights."""
    same = are_close(losses(run, "train"), losses(without, "train"))
    expect(same, "the average changes the losses of the training")
    expect(losses(run, "val"), "there is no validation")
    validated_same = are_close(losses(run, "val"), losses(without, "val"))
    expect(not validated_same, "the losses of validations are the same without the average")
