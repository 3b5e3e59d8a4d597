"""Add label smoothing to a model that has none."""

from pathlib import Path

import torch
import torch.nn.functional as F
from common import Project, expect

MODEL = "gpt"
OPTION = "--model.label_smoothing"


def prepare(folder: Path) -> None:
    """Change nothing."""


def check(project: Project) -> None:
    """Compare the losses of a batch with torch's."""
    for value in ("-0.1", "1", "1.5", "nan"):
        expect(project.refuses(f"{OPTION}={value}"), f"{OPTION}={value} is not refused")
    expect(not project.refuses(f"{OPTION}=0.2"), f"{OPTION}=0.2 is refused")
    _, _, spec = project.load()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 100, (2, 17), generator=generator)
    for smoothing in (0.0, 0.2):
        config = project.config(f"{OPTION}={smoothing}", "--model.dropout=0")
        torch.manual_seed(0)
        model = project.module("model").build(config.model, spec)
        for training in (True, False):
            model.train(training)
            logits = model.predict(tokens[:, :-1]).flatten(0, 1)
            targets = tokens[:, 1:]
            loss, metrics = model(tokens[:, :-1], targets)
            plain = F.cross_entropy(logits, targets.flatten())
            smooth = F.cross_entropy(logits, targets.flatten(), label_smoothing=smoothing)
            right = smooth if training else plain
            place = "training" if training else "a validation"
            problem = f"with {smoothing}, the loss of {place} is {loss:.4f}, and not {right:.4f}"
            expect(torch.allclose(loss, right, atol=1e-5), problem)
        total, count = metrics["loss"]
        reported = float(total) / float(count)
        expect(abs(reported - plain.item()) < 1e-5, "a validation reports another loss")
    project.run_tests()
