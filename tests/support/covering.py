"""Sets of components such that each pair of them is together, alone and apart in some set."""

import random
from itertools import combinations, product
from typing import Any

State = dict[str, bool]
"""Which components a set has, and which it does not have; the others are open."""


def covering(table: dict[str, dict[str, Any]], names: list[str]) -> list[list[str]]:
    """Return sets of components that cover every possible state of each pair.

    The best of some greedy choices.

    A set has what its components require.
    """
    states = product(combinations(names, 2), product((True, False), repeat=2))
    pairs = (dict(zip(pair, state, strict=True)) for pair, state in states)
    wanted = [state for pair in pairs if (state := _completed(table, pair)) is not None]
    found: list[list[str]] = []
    order = random.Random(0)  # noqa: S311
    while wanted:
        tried = [
            _set(table, order.sample(names, len(names)), order.sample(wanted, len(wanted)))
            for _ in range(4)
        ]
        chosen = max(tried, key=lambda it: _covered(it, wanted))
        wanted = [state for state in wanted if not state.items() <= chosen.items()]
        found.append([name for name in names if chosen[name]])
    return found


def _set(
    table: dict[str, dict[str, Any]],
    names: list[str],
    wanted: list[State],
) -> State:
    """Start from the first wanted state, and decide each component so that more are covered."""
    chosen = dict(wanted[0])
    for name in names:
        if name not in chosen:
            ways = [
                way
                for value in (True, False)
                if (way := _completed(table, chosen | {name: value})) is not None
            ]
            chosen = max(ways, key=lambda way: _covered(way, wanted))
    return chosen


def _covered(chosen: State, wanted: list[State]) -> int:
    return sum(state.items() <= chosen.items() for state in wanted)


def _completed(table: dict[str, dict[str, Any]], state: State) -> State | None:
    """Return the state with what its components require; None if that is impossible."""
    found = dict(state)
    open_names = [name for name, present in state.items() if present]
    while open_names:
        name = open_names.pop()
        for other in table[name].get("requires", []):
            if not found.setdefault(other, True):
                return None
            if other not in state:
                open_names.append(other)
    absent = [name for name, present in found.items() if not present]
    if any(
        set(absent) & {*table[name].get("requires", [])}
        for name, present in found.items()
        if present
    ):
        return None
    return found
