"""The loader's options: what it can deliver, against what the model can take."""

from typing import Any

from .found import GAIN, Facts, Finding, Options, as_options, judged, number
from .trials import Trials

WAITING = 0.02
"""Share of the time that a step may wait for data before the loader is worth a change."""
READING = 60.0
"""Seconds that reading all samples once may take, for `data.cache` to be tried."""
FEWER = 0.97
"""Fewer loader processes are kept if they are as fast in the median, and in no round below this."""


def tune(trials: Trials, facts: Facts, config: dict[str, Any], current: Options) -> tuple[dict[int, float], float]:
    """Find the loader's options; return its ceiling by number of workers, and the model's demand.

    Both are in samples per second over all ranks.

    Raises:
        BudgetError: the budget is used up.
    """
    most = max(facts.cores // facts.ranks, 1)
    counts = sorted({facts.workers, *(it for it in (0, 1, 2, 4, 8, 16, 32) if it <= most)})
    settings = {**config, "train": {**config["train"], **_section(current, "train.")}}
    answer = trials.ask(settings, loaders=[{"workers": it} for it in counts], ranks=facts.ranks)
    ceilings = dict(zip(counts, answer, strict=True))
    base = trials.measure(current)
    wait = base.data_wait
    if wait is None:  # without workers the step waits as long as the loader takes
        wait = min(base.speed / ceilings[facts.workers], 1.0)
    demand = base.speed / max(1 - wait, 0.01)
    shown = f"the step waits for data {wait:.1%} of the time"
    shown += f"; the loader alone gives {number(ceilings[facts.workers])} samples/s, the model takes {number(demand)}"
    idle = "" if wait > WAITING else f"the step waits for data only {wait:.1%} of the time"
    findings = trials.findings

    def judge(name: str, value: Any, skip: str) -> None:
        nonlocal current
        what = as_options({name: value})[0].removeprefix("--")
        if skip:
            findings.append(Finding("loader", what, "skipped", skip))
        else:
            findings.append(judged("loader", what, trials.compare(current, {**current, name: value}), {name: value}))
            current = {**current, **findings[-1].values}

    findings.append(_workers(trials, facts, current, ceilings, demand, wait, shown))
    current = {**current, **findings[-1].values}
    reading = facts.samples / max(ceilings[facts.workers], 1e-9)
    slow = f"all samples take {reading:.0f} s to read" if reading > READING else ""
    for value in facts.caches:
        if value not in ("none", config.get("data", {}).get("cache")):
            judge("data.cache", value, idle or slow)
    if current.get("data.cache") == "device":  # the loader reads each sample once
        return ceilings, demand
    workers = current.get("loader.workers", facts.workers)
    judge("loader.prefetch_factor", 2 * config["loader"]["prefetch_factor"], idle or "needs workers" * (not workers))
    judge("loader.pin_memory", not config["loader"]["pin_memory"], "" if facts.streams else "needs a GPU")
    return ceilings, demand


def _section(values: Options, prefix: str) -> Options:
    return {name.removeprefix(prefix): it for name, it in values.items() if name.startswith(prefix)}


def _workers(
    trials: Trials,
    facts: Facts,
    current: Options,
    ceilings: dict[int, float],
    demand: float,
    wait: float,
    shown: str,
) -> Finding:
    """Compare the numbers of workers that may be faster, or do with fewer processes."""
    enough = min((it for it in ceilings if ceilings[it] >= 1.2 * demand), default=facts.workers)
    fastest = max(ceilings, key=lambda it: ceilings[it])
    tried = {0, enough, fastest} if wait > WAITING else {0}
    best = Finding("loader", f"loader.workers={facts.workers}", "no proven gain", shown)
    for count in sorted(tried - {facts.workers}):
        values: Options = {"loader.workers": count}
        fewer = count < facts.workers
        compared = trials.compare(current, {**current, **values}, worth=FEWER if fewer else 1.0)
        proven = compared.proven(FEWER, 1.0) if fewer else compared.proven()
        if proven and compared.ratio > best.ratio * (GAIN if best.values else 0.99):
            why = f"{compared}; with {facts.workers}, {shown}"
            best = Finding("loader", f"loader.workers={count}", "kept", why, values, compared.ratio)
    return best
