"""The learning rate by range tests, which the component `lr-range-test` makes."""

import json
from statistics import geometric_mean

from ..errors import FastprojError
from .options import Options
from .trials import Trainer

STEPS = 200
SEEDS = (0, 1, 2)
AGREE = 3.0
"""Range tests agree if the largest suggestion is at most this many times the smallest one."""


def suggested(trainer: Trainer, kept: Options) -> tuple[float | None, str]:
    """Return the geometric mean of the suggestions, and the reason; None if they do not agree."""
    rates: list[float] = []
    for seed in SEEDS:
        options = {
            "lr_range_test.enabled": True,
            "train.steps": STEPS,
            "train.eval_every": STEPS,
            "run.seed": seed,
        }
        try:
            folder = trainer.train(kept | options)
        except FastprojError as error:
            return None, str(error)
        test = json.loads((folder / "lr_range_test.json").read_text(encoding="utf-8"))
        if test["optim.lr"] is None:
            return None, f"the range test of seed {seed} suggests no rate: {test['why']}"
        rates.append(test["optim.lr"])

    rates_text = ", ".join(f"{rate:.2g}" for rate in rates)
    if max(rates) > AGREE * min(rates):
        return None, f"range tests of {len(SEEDS)} seeds disagree: {rates_text}"
    mean = float(f"{geometric_mean(rates):.2g}")
    return mean, f"range tests of {len(SEEDS)} seeds suggest {rates_text}"
