"""Detect the hardware of this machine, without importing torch, and the answers that follow from it."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gpus import FORMATS, Gpu, detect_gpus
from .probe import field, read_file, sysctl


@dataclass(frozen=True)
class Machine:
    """The hardware of a machine, as far as this process may use it: affinity and the quota of a container count."""

    system: str
    gpus: tuple[Gpu, ...]
    cpu: str
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
    """Detect the hardware; /proc and /sys are read under `root`."""
    notes: list[str] = []
    gpus = detect_gpus(root, notes)
    cpu = read_file(root / "proc/cpuinfo")
    name = field(r"model name\s*:\s*(.*)$", cpu) or sysctl("machdep.cpu.brand_string") or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if quota := re.match(r"(\d+) (\d+)", read_file(root / "sys/fs/cgroup/cpu.max")):
        cores = max(1, min(cores, round(int(quota[1]) / int(quota[2]))))
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        gpus=tuple(gpus),
        cpu=name,
        cores=cores,
        notes=tuple(notes),
    )
