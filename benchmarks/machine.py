"""The machine of a measurement."""

import json
import os
import platform
import re
import statistics
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "lightning", "accelerate", "transformers", "timm", "torchvision")


def machine() -> str:
    """Return the name of the processor and the number of usable cores."""
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    processor = match[1] if match else platform.processor()
    cores = len(os.sched_getaffinity(0))
    return f"{processor}, {cores} cores"


def summary(values: list[float], digits: int) -> list[float]:
    """Return the median, lowest and highest value."""
    return [
        round(statistics.median(values), digits),
        round(min(values), digits),
        round(max(values), digits),
    ]


def keep(file: Path, results: dict[str, Any]) -> None:
    """Write a measurement as JSON, with the machine, its load and the versions of the packages."""
    installed = {package.name: package.version for package in distributions()}
    about = {
        "machine": machine(),
        "load": round(os.getloadavg()[1], 1),
        "versions": {name: installed[name] for name in PACKAGES if name in installed},
    }
    file.write_text(json.dumps(about | results, indent=1) + "\n")
