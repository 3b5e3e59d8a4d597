"""The machine of a measurement."""

import os
import platform
import re
from pathlib import Path


def machine() -> str:
    """Return the name of the processor and the number of usable cores."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.processor()}, {len(os.sched_getaffinity(0))} cores"
