"""What each phase of a step takes on a GPU, which computes later than the host, and the peak of its memory."""

from collections import defaultdict
from typing import Any

import torch

from .distributed import has_streams
from .phase_times import PHASES, PhaseTimes


class DeviceTimes(PhaseTimes):
    """Records events in the last step before a row, whose times are read when the row was waited for anyway.

    The shares are those of that step on the device. `data_wait` is still the host's, over all steps: the device notices
    it only if it has nothing else to do. Apple's GPUs have no such events.
    """

    def __init__(self, device: torch.device, captured: bool) -> None:
        super().__init__()
        self.device, self.has_memory = device, has_streams(device)
        self.records = self.has_memory and not captured
        self.recording = False
        self.recorded: list[tuple[str, Any]] = []
        self.events: list[Any] = []

    def begin_step(self, progress: Any) -> None:
        """Record the step if a row comes after it."""
        if self.records and progress.is_logged(progress.step + 1):
            self.recording, self.recorded = True, []
            self._record("other")

    def begin(self, phase: str) -> None:
        """Begin a phase, on the host and on the device."""
        super().begin(phase)
        if self.recording:
            self._record(phase)

    def _record(self, phase: str) -> None:
        if len(self.recorded) == len(self.events):
            self.events.append(torch.Event(self.device, enable_timing=True))
        event = self.events[len(self.recorded)]
        event.record()
        self.recorded.append((phase, event))

    def add_to(self, row: dict[str, float], samples: int) -> None:
        """As on the host; the last event is one that was waited for."""
        self.recording = False
        super().add_to(row, samples)

    def measured(self, row_seconds: float) -> dict[str, float]:
        """Return the shares, and the peak of the allocated memory since the last row in units of 10^9 bytes."""
        found = {"data_wait": round(self.seconds["data_wait"] / row_seconds, 4), **self._shares()}
        if self.has_memory:
            found["memory_gb"] = torch.accelerator.max_memory_allocated(self.device) / 1e9
            torch.accelerator.reset_peak_memory_stats(self.device)
        return found

    def _shares(self) -> dict[str, float]:
        """Return the shares of the step that was recorded, if there was one, and the host has waited for it."""
        if not (self.recorded and self.recorded[-1][1].query()):
            return {}
        sums: dict[str, float] = defaultdict(float)
        for (phase, event), (_, after) in zip(self.recorded, self.recorded[1:], strict=False):
            sums[phase] += event.elapsed_time(after)
        whole = sum(sums.values()) - sums["outside"]
        self.recorded = []
        return {name: round(sums[name] / whole, 4) for name in PHASES[1:] if name in sums}
