"""Paired trials: how often planted differences are found, and differences that are not there."""

import math
import random
from itertools import chain

import pytest
from fastproj.runs.paired import Comparison, Estimate, Trial, Turns, estimate, student_t

PAIRS = 8
FREEDOM = {1: 12.706, 2: 4.303, 3: 3.182, 7: 2.365, 30: 2.042}
"""Student's t of 95% by degrees of freedom, as in its printed tables."""


def gain(mine: Trial, base: Trial) -> float:
    return mine.metric - base.metric


def compared(effect: float, draw: random.Random, candidates: int = 1) -> list[Comparison]:
    """Compare candidates; the differences have a standard deviation of one."""

    def measure(sides: dict[str, float], _: int) -> dict[str, Trial]:
        return {
            name: Trial(1.0, metric=side + draw.gauss(0, math.sqrt(0.5)))
            for name, side in sides.items()
        }

    turns = Turns(measure, PAIRS, difference=gain)
    sides = {str(number): effect for number in range(candidates)}
    return list(turns.compare(0.0, sides, {}).values())


def equal_trials(sides: dict[str, float], _: int) -> dict[str, Trial]:
    """Return the trials of sides that always measure the same."""
    return {name: Trial(side, metric=side) for name, side in sides.items()}


def clear(effect: float, count: int, candidates: int = 1) -> list[list[Estimate]]:
    """Return the clear differences of each of some comparisons."""
    draw = random.Random(3)  # noqa: S311
    found = []
    for _ in range(count):
        estimates = [one.estimate(gain) for one in compared(effect, draw, candidates)]
        found.append([one for one in estimates if one.is_clear])
    return found


def test_student_t_is_that_of_the_tables() -> None:
    for freedom, value in FREEDOM.items():
        assert student_t(0.05, freedom) == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize("candidates", [1, 4])
def test_no_difference_is_rarely_taken_for_one(candidates: int) -> None:
    count = 800 // candidates
    assert sum(map(bool, clear(0.0, count, candidates))) <= 0.05 * count


@pytest.mark.parametrize(
    ("effect", "share"),
    [
        (1.0, 0.5),
        (2.0, 0.95),
        (-2.0, 0.95),
    ],
)
def test_planted_differences_are_found(effect: float, share: float) -> None:
    found = [*chain.from_iterable(clear(effect, 40))]
    assert len(found) >= share * 40
    assert all((one.mean > 0) == (effect > 0) for one in found)


def test_large_differences_end_early_and_equal_ones_do_not() -> None:
    (large,) = compared(30.0, random.Random(1))  # noqa: S311
    assert len(large.trials) <= 4
    same = Turns(equal_trials, PAIRS, difference=gain)
    equal = same.compare(1.0, {"candidate": 1.01}, {})["candidate"]
    assert len(equal.trials) == PAIRS, "a metric of a few values is often equal by chance"
    assert equal.estimate(gain).is_clear


def test_one_pair_is_no_evidence() -> None:
    assert not estimate([5.0], 0.05).is_clear
    one = Turns(equal_trials, 1).compare(1.0, {"fast": 9.0}, {})["fast"]
    assert one.text() == "9.00 times as fast in one pair, which is no evidence"


def test_sides_take_turns_and_a_crash_ends_them() -> None:
    order = []

    def measure(sides: dict[str, str], seed: int) -> dict[str, Trial]:
        order.append(f"{' '.join(sides.values())} {seed}")
        return {name: Trial(1.0, problem="crashed" if name == "b" else "") for name in sides}

    comparisons = Turns(measure, 2).compare(
        "base",
        {"a": "a", "b": "b"},
        {},
    )
    assert order == ["base a b 0", "a base 1"]
    assert comparisons["b"].problem == "crashed"
    assert comparisons["b"].trials == []


def test_no_pair_begins_that_would_end_after_the_deadline() -> None:
    turns = Turns(equal_trials, 5, deadline=0.0)
    assert turns.compare(1.0, {"late": 2.0}, {})["late"].text() == "not measured"


def test_pairs_go_on_until_the_interval_is_narrow_or_the_candidate_hopeless() -> None:
    draw = random.Random(2)  # noqa: S311

    def measure(sides: dict[str, float], _: int) -> dict[str, Trial]:
        return {name: Trial(side * (1 + 0.05 * draw.random())) for name, side in sides.items()}

    def pairs(turns: Turns[float]) -> int:
        return len(turns.compare(1.0, {"fast": 2.0}, {})["fast"].trials)

    assert pairs(Turns(measure, PAIRS)) == 3
    assert pairs(Turns(measure, PAIRS, widest=0.01)) == PAIRS
    assert pairs(Turns(measure, PAIRS, worst=1.0)) == 1
