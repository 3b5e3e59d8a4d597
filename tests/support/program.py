"""The program as tests run it, and commands in a rendered project."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Fastproj = Callable[..., subprocess.CompletedProcess[str]]
"""Runs the real program; the fixture `fastproj` gives it."""
Project = Callable[..., Path]
"""Renders a combination of framework, model and hardware; the fixture `project` gives it."""


def run_in(folder: Path, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a rendered project, whose package is found without being installed."""
    search = {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **search, **changes}, capture_output=True, text=True, check=False
    )
