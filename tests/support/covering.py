"""Sets of components such that each pair of them is rendered together, alone and apart."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

State = tuple[str, bool, str, bool]


def _pairs(chosen: frozenset[str], names: list[str]) -> set[State]:
    """Return which of each two components a set has."""
    return {(one, one in chosen, other, other in chosen) for one, other in combinations(names, 2)}


def covering(table: dict[str, dict[str, Any]], names: list[str]) -> list[list[str]]:
    """Return sets of components that cover every state of each pair, the largest ones first; greedy.

    A set has what its components require, and none that exclude each other.
    """
    possible = [chosen for size in range(min(len(names), 4), -1, -1) for chosen in _subsets(table, names, size)]
    wanted = set().union(*(_pairs(chosen, names) for chosen in possible))
    found: list[frozenset[str]] = []
    while wanted:
        best = max(possible, key=lambda chosen: len(_pairs(chosen, names) & wanted))
        wanted -= _pairs(best, names)
        found.append(best)
    return [[name for name in names if name in chosen] for chosen in found]


def _subsets(table: dict[str, dict[str, Any]], names: list[str], size: int) -> Iterable[frozenset[str]]:
    for chosen in map(frozenset, combinations(names, size)):
        required = {other for name in chosen for other in table[name].get("requires", [])}
        excluded = {other for name in chosen for other in table[name].get("conflicts", [])}
        if required <= chosen and not excluded & chosen:
            yield chosen
