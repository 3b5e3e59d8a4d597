"""Each schedule has its shape, trains, and continues when a stopped run is resumed."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ..components.schedules import Schedule, SchedulesConfig
from ..errors import Stopped, UserError
from ..loader import BatchPlan
from .support import ask_to_stop, config, equal, rows, state, train_here

NAMES = ["cosine", "cyclical", "wsd", "constant"]


def heights(name: str, steps: int, **options: object) -> list[float]:
    plan = BatchPlan.make(config(Path(), f"--train.steps={steps}").train, 36, 1)
    own = SchedulesConfig(enabled=True, name=name, **options)  # type: ignore[arg-type]
    schedule = Schedule(own, plan, config(Path()))
    return [schedule.height(step) for step in range(steps)]


def stop_at(step: int) -> Any:
    """Ask the run to stop in a step."""
    original = Schedule.height

    def stop_and_return(schedule: Schedule, number: int) -> float:
        if number == step:
            ask_to_stop()
        return original(schedule, number)

    return mock.patch.object(Schedule, "height", stop_and_return)


def test_shapes() -> None:
    assert heights("constant", 6, warmup=0.5) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert heights("cosine", 6, warmup=0.0, final=0.5) == pytest.approx(
        [1, 0.966506, 0.875, 0.75, 0.625, 0.533494]
    )
    assert heights("wsd", 6, warmup=0.0, decay=0.5) == pytest.approx(
        [1, 1, 1, 1, 0.42265, 0.183503], abs=1e-6
    )
    assert heights("cyclical", 6, cycle_steps=4, cycle_factor=5) == pytest.approx(
        [0.2, 0.6, 1, 0.6, 0.2, 0.6]
    )


@pytest.mark.parametrize("name", NAMES)
def test_stopped_run_resumes_to_the_same_end(tmp_path: Path, name: str) -> None:
    options = [
        "--schedules.enabled=true",
        f"--schedules.name={name}",
        "--log.every=1",
        "--train.steps=8",
    ]
    train_here(tmp_path / "whole", *options)
    peak, found = config(tmp_path, *options).optim.lr, rows(tmp_path / "whole", "train")
    assert [row["lr"] for row in found] == pytest.approx(
        [peak * height for height in heights(name, 8)]
    )
    with stop_at(5), pytest.raises(Stopped):
        train_here(tmp_path / "stopped", *options)
    train_here(tmp_path / "stopped", *options)
    assert rows(tmp_path / "stopped", "train") == found
    assert equal(state(tmp_path / "stopped"), state(tmp_path / "whole"))


def test_warmup_and_decay_that_overlap_are_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"^schedules.warmup is 0.7: with schedules.decay 0.5, it must be at most 0.5$",
    ):
        SchedulesConfig(name="wsd", warmup=0.7, decay=0.5)
