"""The learning rate by range tests, which the component `lr-range-test` makes."""

import json
from statistics import geometric_mean

from ..shared.errors import FastprojError
from .options import Options
from .trials import Trainer

STEPS, SEEDS, AGREE = 200, (0, 1, 2), 3.0
"""Range tests agree if the largest suggestion is at most this many times the smallest one."""


def suggested(trainer: Trainer, kept: Options) -> tuple[float | None, str]:
    """Return the geometric mean of what the tests suggest, and the reason; None if they do not agree."""
    rates: list[float] = []
    for seed in SEEDS:
        given = {
            "lr_range_test.enabled": True,
            "train.steps": STEPS,
            "train.eval_every": STEPS,
            "run.seed": seed,
        }
        try:
            folder = trainer.train(kept | given)
        except FastprojError as error:
            return None, str(error)
        found = json.loads((folder / "lr_range_test.json").read_text(encoding="utf-8"))
        if found["optim.lr"] is None:
            return None, f"the range test of seed {seed} suggests no rate: {found['why']}"
        rates.append(found["optim.lr"])
    listed = ", ".join(f"{rate:.2g}" for rate in rates)
    if max(rates) > AGREE * min(rates):
        return None, f"range tests of {len(SEEDS)} seeds disagree: {listed}"
    return float(
        f"{geometric_mean(rates):.2g}"
    ), f"range tests of {len(SEEDS)} seeds suggest {listed}"
