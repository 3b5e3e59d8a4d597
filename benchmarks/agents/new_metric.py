"""Add a metric whose count is not the size of a batch."""

from pathlib import Path

import torch
from common import Project, expect, read_rows

MODEL = "mlp"
METRIC = "malignant_recall"
ODD = ("--train.steps=5", "--train.eval_every=5", "--train.batch_size=7", "--log.every=1")
"""A short run with batches of which some have few malignant samples."""


def prepare(folder: Path) -> None:
    """Change nothing."""


def check(project: Project) -> None:
    """Compare with the recall of the whole validation set."""
    run = project.train(*ODD)
    for split in ("train", "val"):
        expect(METRIC in read_rows(run, split)[-1], f"no {METRIC} in the rows of {split}")
    evaluation = project.module("evaluate")
    cpu = torch.device("cpu")
    _, model, val_set, _ = evaluation.load_run(run, cpu)
    model.eval()
    *inputs, labels = project.whole_batch(val_set)
    with torch.no_grad():
        predicted = model.predict(*inputs).argmax(1)
    right = (predicted[labels == 0] == 0).double().mean().item()
    world = project.module("distributed").World(0, 1, cpu)
    reported = evaluation.evaluate_run(run, world)[METRIC]
    expect(abs(right - reported) < 1e-6, f"{METRIC} is {reported:.4f}, and not {right:.4f}")
    project.run_tests()
