"""Which rank is to blame for a hang, from what each has recorded in its file."""

import socket
from collections.abc import Mapping
from typing import Any

from .guard import status_of

PHASES = ("logging", "validation", "saving", "fetching a batch", "forward and backward", "optimizer step")
"""What a rank can be at, in the order within a step."""

Place = tuple[int, str, int]
"""The optimizer steps made, the phase, and the number of the batch in it."""


def describe(states: Mapping[int, Mapping[str, Any]]) -> str:
    """Name the ranks that cannot go on, or else the one that is furthest behind.

    A state has `place`, `pid`, `host` and whether the rank itself `hangs`; it is empty for a rank that wrote none.
    """
    if len(states) == 1:
        return f"the run is {_where(states[0])}"
    troubled = {rank: trouble(state, silent=True) for rank, state in states.items()}
    named = [f"rank {rank} {why}, {_where(states[rank], 'last seen')}" for rank, why in troubled.items() if why]
    if named:
        return ", and ".join(named)
    orders = {rank: _order(state) for rank, state in states.items()}
    behind = min(orders, key=lambda rank: (orders[rank], rank))
    if len(set(orders.values())) == 1:
        return f"all {len(states)} ranks are {_where(states[behind])}"
    ahead = max(orders, key=lambda rank: orders[rank])
    waiting = f"rank {ahead} waits {_where(states[ahead])}"
    return f"rank {behind} is furthest behind, {_where(states[behind])}; {waiting}"


def trouble(state: Mapping[str, Any], silent: bool = False) -> str:
    """Return why a rank cannot go on, if that is known; with `silent`, also if it has not reported a hang."""
    if state.get("host") == socket.gethostname() and not state.get("hangs"):
        status = status_of(state["pid"])
        if status in ("T", "t"):
            return "is stopped by a signal (SIGSTOP; SIGCONT continues it)"
        if status in ("", "Z", "X"):
            return "has ended"
    return "does not respond" if silent and not state.get("hangs") else ""


def _where(state: Mapping[str, Any], seen: str = "") -> str:
    if "place" not in state:
        return "never seen since its start"
    step, phase, number = state["place"]
    return f"{seen} at step {step} ({phase}{f', batch {number}' * (phase == 'validation')})".lstrip()


def _order(state: Mapping[str, Any]) -> tuple[int, int, int]:
    step, phase, number = state["place"]
    return step, PHASES.index(phase), number
