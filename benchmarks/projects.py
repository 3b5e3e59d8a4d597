"""What several measurements share: rendered projects, and programs that run in them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def render_project(output: Path, name: str, model: str, *options: str) -> Path:
    """Render a project for CPUs below a folder, and return its own folder."""
    command = [sys.executable, "-m", "fastproj", "new", name]
    command += ["--model", model, "--gpus", "0", "--yes", "--no-git"]
    command += ["--output", str(output), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output / name


def one_thread(project: Path) -> dict[str, str]:
    """Return the environment of a program that imports the project's package."""
    return os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}


def read_rows(run: Path, split: str) -> list[dict[str, Any]]:
    """Return the metrics of a run's training (train) or of its validations (val)."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["split"] == split]
