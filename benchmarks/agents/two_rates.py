"""Compare two learning rates over several seeds."""

import json
import math
from collections import defaultdict
from pathlib import Path

from common import Project, expect, is_finished, losses

MODEL = "mlp"
RATES = (3e-3, 1e-4)
BETTER = 3e-3
SEEDS = 3
EPOCHS = 10


def prepare(folder: Path) -> None:
    """Change nothing."""


def check(project: Project) -> None:
    """Compare the answer with the runs that the solver left."""
    file = project.folder / "answer.json"
    expect(file.exists(), "there is no answer.json")
    answer = json.loads(file.read_text(encoding="utf-8"))
    expect(answer["better"] == BETTER, f"the answer is {answer['better']}")
    means = {float(rate): loss for rate, loss in answer["loss"].items()}
    found = read_runs(project.original)
    for rate in RATES:
        seeds = found[rate]
        expect(len(seeds) >= SEEDS, f"{len(seeds)} seeds are trained with {rate}")
        expect(rate in means, f"the answer has no loss for {rate}")
        mean = sum(seeds.values()) / len(seeds)
        near = math.isclose(means[rate], mean, rel_tol=0.02)
        expect(near, f"the mean loss with {rate} is {mean:.4f}, and not {means[rate]:.4f}")


def read_runs(folder: Path) -> dict[float, dict[int, float]]:
    """Return the last validation loss of each finished run, by its rate and its seed."""
    found: dict[float, dict[int, float]] = defaultdict(dict)
    for file in folder.rglob("config.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        config = record.get("config", {})
        if is_finished(file.parent) and config["train"]["epochs"] == EPOCHS:
            found[config["optim"]["lr"]][config["run"]["seed"]] = losses(file.parent, "val")[-1]
    return found
