"""Where the time of a run goes: what each phase of a step takes of a row of metrics."""

import time
from collections import defaultdict
from typing import Any

PHASES = ("data_wait", "prepare", "forward", "backward", "communication", "optimizer")
"""In training rows, as shares of the time since the row before; what they leave is the loop, hooks and logging."""
MEASURED = {"seconds", "samples_per_second", "tflops", "mfu", "slowest_rank", "slowest_rank_share", "memory_gb"}
MEASURED |= {*PHASES}
"""What of a row is measured, and so differs between two equal runs."""
OF_PLACE = {"forward and backward": "prepare", "optimizer step": "optimizer", "saving": "outside"}
"""The phases that begin at a place of `Run.at`; `outside` is not in the time of a row."""


class PhaseTimes:
    """Sums up the host's time in each phase since the last row: on the CPU, that of the computation."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.phase, self.began = "other", time.perf_counter()

    def begin(self, phase: str) -> None:
        """Begin a phase, which ends the one before."""
        now = time.perf_counter()
        self.seconds[self.phase] += now - self.began
        self.phase, self.began = phase, now

    def begin_row(self, progress: Any) -> None:
        """Begin a row with the coming step of a `Progress`."""
        self.seconds.clear()
        self.began = time.perf_counter()
        self.begin_step(progress)

    def begin_step(self, progress: Any) -> None:
        """Begin a step, which may be the last before a row."""

    def add_to(self, row: dict[str, float], samples: int) -> None:
        """Add the speed and the shares to a row that was waited for; a metric of the model's comes first."""
        self.begin("other")
        row_seconds = sum(self.seconds.values()) - self.seconds["outside"]
        row |= {"samples_per_second": samples / row_seconds, **self.measured(row_seconds), **row}

    def measured(self, row_seconds: float) -> dict[str, float]:
        """Return the shares of the phases that there were."""
        return {name: round(self.seconds[name] / row_seconds, 4) for name in PHASES if name in self.seconds}
