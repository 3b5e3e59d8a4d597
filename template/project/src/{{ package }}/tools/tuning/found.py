"""What the stages of tune exchange: settings, measurements, comparisons and findings."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

Options = dict[str, Any]
"""Values by option, such as {"speed.compile": "model"}."""
GAIN = 1.03
"""A change is kept if it is faster in all rounds, and by this factor in the median."""
ROUNDS = 3


@dataclass(frozen=True)
class Measured:
    """What is kept of a trial."""

    outcome: str
    reason: str
    seconds: float
    speed: float = math.nan
    """Samples per second; NaN without a row."""
    memory_gb: float | None = None
    data_wait: float | None = None
    """Share of the time in which the step waits for data."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


@dataclass(frozen=True)
class Compared:
    """The speeds of two settings in the same rounds, in samples per second."""

    base: list[float]
    other: list[float]
    reason: str = ""
    """Why the other one does not run."""
    later: float = 0.0
    """Seconds that the first trial of the other one took longer, which are mostly of its start."""

    @property
    def ratio(self) -> float:
        """How many times as fast the other one is in the median round; 0 if it does not run."""
        if self.reason or not self.other:
            return 0.0
        base, other = self._median_round()
        return other / base

    def proven(self, least: float = 1.0, median: float = GAIN) -> bool:
        """Whether it is faster by these factors, in each of all rounds and in the median."""
        pairs = zip(self.base, self.other, strict=True)
        complete = len(self.other) >= ROUNDS and all(other >= least * base for base, other in pairs)
        return complete and self.ratio >= median

    def __str__(self) -> str:
        base, other = self._median_round()
        return f"{number(other)} samples/s against {number(base)} ({len(self.other)} round{'s'[: len(self.other) > 1]})"

    def _median_round(self) -> tuple[float, float]:
        """Return the speeds of both in the round whose ratio is the median, of an even number the lower one."""
        rounds = sorted(zip(self.base, self.other, strict=True), key=lambda it: it[1] / it[0])
        return rounds[(len(rounds) - 1) // 2]


@dataclass(frozen=True)
class Finding:
    """What was found about one change: a row of the table, and what it changes in the config if it is kept."""

    stage: str
    what: str
    verdict: str
    """kept, no proven gain, dropped, refused, failed, skipped, not finished, or as before."""
    why: str
    values: Options = field(default_factory=dict)
    """Options that the change sets, if it is kept."""
    ratio: float = 1.0


@dataclass(frozen=True)
class Facts:
    """What `probe.py` finds out about machine and project."""

    device: str
    ranks: int
    cores: int
    samples: int
    workers: int
    """Loader processes per rank, as the config has them here."""
    precision: str
    convolutions: bool
    memory_gb: float
    """10^9 bytes: of the device; on the CPU what is free; infinite if it is not known."""
    streams: bool
    """Whether the device has memory of its own, and copies asynchronously: GPUs but Apple's."""
    caches: list[str]
    """Values of `data.cache`."""
    machine: str


def as_options(values: Options) -> list[str]:
    """Return options of the training command."""
    return [f"--{name}={it if isinstance(it, str) else json.dumps(it)}" for name, it in values.items()]


def number(value: float) -> str:
    """Return a speed as text."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def judged(stage: str, what: str, compared: Compared, values: Options, limit: str = "") -> Finding:
    """Return what a comparison shows: a gain in all rounds, none, or why the change does not run.

    `limit` is a reason not to keep a gain.
    """
    if compared.reason:
        kind = "failed" if compared.reason.startswith(("out of memory", "timeout")) else "refused"
        return Finding(stage, what, kind, compared.reason)
    if not compared.proven() or limit:
        return Finding(stage, what, "no proven gain", f"{compared}{f'; {limit}' * bool(limit)}", ratio=compared.ratio)
    return Finding(stage, what, "kept", str(compared), values, compared.ratio)
