"""The gradient scaler of fp16, which counts the steps that it skips."""

from typing import Any

import torch

from .distributed import has_streams


class CountingScaler(torch.amp.GradScaler):
    """A gradient scaler that counts on the device, so that the host does not wait for each step to end.

    A fused optimizer also skips a step on the device. For the others `GradScaler.step` reads a value in each step.
    """

    def __init__(self, device: torch.device, **options: Any) -> None:
        super().__init__(device.type, **options)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._on_host = self._skipped.cpu()
        self._copied = torch.Event(device) if has_streams(device) else None

    def update(self, new_scale: Any = None) -> None:
        """Update the scale, which is lower after a skipped step, and start to copy the count to the host."""
        assert self._scale is not None
        before = self._scale.clone()
        super().update(new_scale)
        self._skipped += self._scale < before
        # Apple's GPUs have no event to wait for the end of the copy with.
        self._on_host = self._skipped.to("cpu", non_blocking=self._skipped.device.type != "mps")
        if self._copied:
            self._copied.record()

    def skipped_steps(self) -> int:
        """Return how many steps were skipped; waits until the device has made the last one."""
        if self._copied:
            self._copied.synchronize()
        return int(self._on_host)
