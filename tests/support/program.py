"""The program as tests run it, and commands in a rendered project."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
"""Programs that tests start in processes of their own."""
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


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the content of each file outside git's folder."""
    files = [file for file in folder.rglob("*") if file.is_file() and ".git" not in file.parts]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def run_on_full_device(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a folder, with a stdout to which nothing can be written."""
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [sys.executable, "-m", "fastproj", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
