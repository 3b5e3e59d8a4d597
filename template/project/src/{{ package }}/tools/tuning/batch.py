"""The micro-batch: the largest that fits, and the smallest that is nearly as fast as the fastest."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...errors import UserError
from .found import GAIN, Facts, Finding, Measured, Options, judged, number
from .trials import BudgetError, Trials

HEADROOM = 0.1
"""Share of the memory that stays free."""
KNEE = 0.05
"""The knee is the smallest size that is slower than the fastest by no more than this share."""


def tune(trials: Trials, facts: Facts, config: dict[str, Any], larger: bool) -> dict[int, float]:
    """Find the micro-batch; return the throughput curve.

    The global batch stays as it is, so that a size is one of its divisors; or it grows with the micro-batch. Sizes are
    tried with all samples as long as the longest, where `data.padding` allows that.

    Raises:
        UserError: no size fits.
        BudgetError: the budget is used up.
    """
    train, data = config["train"], config.get("data", {})
    size = train["micro_batch"]
    total = train["global_batch"] // facts.ranks if train["global_batch"] else size * train["accumulate"]
    accumulate = max(total // size, 1)
    if larger:
        most = facts.samples // (facts.ranks * accumulate)
        sizes = sorted({size, *(it for it in range(8, most + 1, 8))})
    else:
        divisors = [it for it in range(1, total + 1) if total % it == 0]
        sizes = sorted({size, *(it for it in divisors if it % 8 == 0 or total % 8)})

    def values(it: int) -> Options:
        if it == size:
            return {}
        if larger:
            return {"train.micro_batch": it, "train.accumulate": accumulate, "train.global_batch": None}
        fixed = {"train.micro_batch": it, "train.accumulate": total // it}
        return fixed if not train["global_batch"] else {**fixed, "train.accumulate": 1}

    worst: Options = {"data.padding": "length"} if data.get("padding") == "batch" else {}
    search = Search(trials, facts, lambda it: {**values(it), **worst})
    largest = search.largest(sizes, size)
    if not larger and largest >= size:  # a smaller one may use the caches better, or need less padding
        for it in reversed([it for it in sizes if it < size]):
            if not search.fits(it) or search.speed(it) < GAIN * search.speed(size):
                break
    curve = {it: found.speed for it, found in sorted(search.tried.items()) if search.fits(it)}
    fastest = max(curve.values())
    knee = min(it for it, speed in curve.items() if speed >= (1 - KNEE) * fastest)
    if size in curve and curve[size] >= (1 - KNEE) * fastest:
        knee = size
    memory = search.tried[largest].memory_gb
    limit = f" of {facts.memory_gb:.3g}" if facts.streams else ""
    if search.next:
        fitting = f"{largest} fits with {HEADROOM:.0%} of the memory free, {search.next} does not"
        fitting += f" ({memory:.2g}{limit} GB)" if memory else ""
    elif larger:
        fitting = f"all sizes fit, up to {largest} of {facts.samples} training samples"
    else:
        fitting = f"all sizes fit, up to the whole global batch of {total * facts.ranks}"
    what = f"train.micro_batch={knee}"
    if knee == size:
        found = Finding("batch", what, "no proven gain", f"as it is; {fitting}")
    elif size not in curve:
        why = f"{number(curve[knee])} samples/s; {size} does not fit; {fitting}"
        found = Finding("batch", what, "kept", why, values(knee))
    else:
        found = judged("batch", what, trials.compare({}, values(knee)), values(knee))
        found = replace(found, why=f"{found.why}; {fitting}")
    trials.findings.append(found)
    return curve


class Search:
    """Tries sizes, each once."""

    def __init__(self, trials: Trials, facts: Facts, values: Callable[[int], Options]) -> None:
        """`values` returns the options of a size."""
        self.trials, self.facts, self.values = trials, facts, values
        self.tried: dict[int, Measured] = {}
        self.next = 0
        """The smallest size that did not fit; 0 if all fit."""

    def fits(self, size: int) -> bool:
        """Whether a size ran, with headroom on a device with memory of its own; on the host its limit is lower."""
        if size not in self.tried:
            self.tried[size] = self.trials.measure(self.values(size))
        found = self.tried[size]
        own = self.facts.streams
        return found.ok and (not own or (found.memory_gb or 0.0) <= (1 - HEADROOM) * self.facts.memory_gb)

    def speed(self, size: int) -> float:
        """Return the samples per second of a size that was tried."""
        return self.tried[size].speed

    def largest(self, sizes: list[int], start: int) -> int:
        """Return the largest size that fits, by doubling from `start` or halving, and then by bisection.

        With too small a budget it is only known to be below `next`.

        Raises:
            BudgetError: none was found in time.
            UserError: none fits.
        """
        low = sizes.index(start)
        high = len(sizes)
        if self.fits(sizes[low]):
            while low + 1 < high:
                larger = max(low + 1, max(it for it in range(low, len(sizes)) if sizes[it] <= 2 * sizes[low]))
                if not self.fits(sizes[larger]):
                    high = larger
                    break
                low = larger
        else:
            while not self.fits(sizes[low]):
                if low == 0:
                    found = self.tried[sizes[0]]
                    raise UserError(f"not even train.micro_batch={sizes[0]} runs ({found.outcome}: {found.reason})")
                high = low
                low = min(low - 1, max([it for it in range(low) if sizes[it] <= sizes[low] / 2], default=0))
        with suppress(BudgetError):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.fits(sizes[middle]) else (low, middle)
        self.next = sizes[high] if high < len(sizes) else 0
        return sizes[low]
