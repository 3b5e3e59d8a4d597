"""Detect the hardware of this machine, without importing torch, and the answers that follow from it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gpus import FORMATS, Gpu, detect_gpus


@dataclass(frozen=True)
class Machine:
    """The hardware of a machine that this process may use."""

    gpus: tuple[Gpu, ...]
    cores: int
    notes: tuple[str, ...] = ()
    """What could not be detected, and why."""

    def answers(self) -> dict[str, Any]:
        """Return the answers to the template's questions that follow from the hardware."""
        if not self.gpus:
            return {"gpus": 0, "nodes": 1}
        # NCCL does not support several MIG slices in one job.
        gpus = 1 if any(gpu.is_slice for gpu in self.gpus) else min(len(self.gpus), 64)
        common = min((gpu.tensor_cores for gpu in self.gpus), key=FORMATS.index)
        return {"gpus": gpus, "nodes": 1, "tensor_cores": common}


def detect(root: Path = Path("/")) -> Machine:
    """Detect the hardware; /sys is read under `root`."""
    notes: list[str] = []
    gpus = detect_gpus(root, notes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(tuple(gpus), cores, tuple(notes))
