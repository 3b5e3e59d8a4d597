"""Train on a CSV file with another separator, decimal commas, an id and a column that leaks."""

from pathlib import Path

import numpy as np
import torch
from common import Project, expect, read_rows

MODEL = "mlp"
ROWS = 1200
LEAK = 0.98
"""Correlation with the target that only the column `tax` has."""


def prepare(folder: Path) -> None:
    """Write the table."""
    draw = np.random.default_rng(1)
    lines = ["id;district;rooms;area;year;tax;price"]
    for number in range(ROWS):
        district = str(draw.choice(["Nord", "Mitte", "West", "See"]))
        rooms = int(draw.integers(1, 7))
        area = 18.0 * rooms + draw.uniform(5, 40)
        year = int(draw.integers(1900, 2021))
        place = {"Nord": 0.8, "Mitte": 1.3, "West": 1.0, "See": 1.6}[district]
        price = area * 3.1 * place * (1 + (year - 1960) / 400) + draw.normal(0, 45)
        cells = [f"{area:.1f}", str(year), f"{0.05 * price:.3f}", f"{price:.2f}"]
        line = ";".join([str(number), district, str(rooms), *cells])
        lines.append(line.replace(".", ","))
    (folder / "flats.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def check(project: Project) -> None:
    """Train, and look at what the model is given."""
    train_set, val_set, spec = project.load()
    total = len(train_set) + len(val_set)
    expect(total == ROWS, f"training and validation have {total} rows, and the table has {ROWS}")
    prepare_batch = project.module("data").Prepare(spec, project.config().data)
    *inputs, target = prepare_batch(project.whole_batch(train_set), False, torch.Generator())
    for part in inputs:
        for column in part.double().flatten(1).T:
            both = torch.stack([column, target.double().flatten()])
            correlation = torch.corrcoef(both)[0, 1].abs()
            expect(not correlation > LEAK, "a column gives the price away")
    last = read_rows(project.train(), "val")[-1]
    expect("r2" in last, "a validation reports no r2")
    expect(last["r2"] >= 0.75, f"r2 is {last['r2']:.3f}")
