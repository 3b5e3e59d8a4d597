"""Each schedule has its shape, and training follows it."""

from pathlib import Path

import pytest

from ..components.schedules import Schedule, SchedulesConfig
from ..errors import UserError
from ..loader import BatchPlan
from .support import config, rows, train_here


def heights(
    name: str,
    steps: int,
    **options: object,
) -> list[float]:
    plan = BatchPlan.make(config(Path(), f"--train.steps={steps}").train, 36, 1)
    own = SchedulesConfig(enabled=True, name=name, **options)  # type: ignore[arg-type]
    schedule = Schedule(own, plan, config(Path()))
    return [schedule.height(step) for step in range(steps)]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("constant", {"warmup": 0.5}, [0.25, 0.5, 0.75, 1, 1, 1]),
        (
            "cosine",
            {"warmup": 0.0, "final": 0.5},
            [1, 0.9665, 0.875, 0.75, 0.625, 0.5335],
        ),
        (
            "wsd",
            {"warmup": 0.0, "decay": 0.5},
            [1, 1, 1, 1, 0.4226, 0.1835],
        ),
        (
            "cyclical",
            {"cycle_steps": 4, "cycle_factor": 5},
            [0.2, 0.6, 1, 0.6, 0.2, 0.6],
        ),
    ],
)
def test_shapes(
    name: str,
    options: dict[str, object],
    expected: list[float],
) -> None:
    assert heights(name, 6, **options) == pytest.approx(expected, abs=1e-4)


def test_rates_are_those_of_the_schedule(tmp_path: Path) -> None:
    options = ["--schedules.enabled=true", "--log.every=1", "--train.steps=8"]
    train_here(tmp_path, *options)
    peak = config(tmp_path).optim.lr
    rates = [row["lr"] for row in rows(tmp_path, "train")]
    assert rates == pytest.approx([peak * height for height in heights("cosine", 8)])


def test_warmup_and_decay_that_overlap_are_refused() -> None:
    message = r"^schedules.warmup is 0.7: with schedules.decay 0.5, it must be at most 0.5$"
    with pytest.raises(UserError, match=message):
        SchedulesConfig(name="wsd", warmup=0.7, decay=0.5)
