"""The machine of a measurement."""

import json
import os
import platform
import re
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "lightning", "accelerate", "transformers", "timm", "torchvision")


def machine() -> str:
    """Return the name of the processor and the number of usable cores."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


def keep(file: Path, found: dict[str, Any]) -> None:
    """Write a measurement as JSON, with the machine, its load and the versions of the packages."""
    installed = {it.name: it.version for it in distributions()}
    versions = {name: installed[name] for name in PACKAGES if name in installed}
    about = {"machine": machine(), "load": round(os.getloadavg()[1], 1), "versions": versions}
    file.write_text(json.dumps(about | found, indent=1) + "\n")
