"""Train every model with its recipe, and write the result to its page in docs/models/.

For all models, or for one with more seeds:

    python benchmarks/models.py
    python benchmarks/models.py vae --seeds 5
"""

import argparse
import json
import operator
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import yaml
from machine import machine

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "models"


def main() -> None:
    """Measure and write."""
    models = list(yaml.safe_load((ROOT / "copier.yml").read_text())["models"]["default"])
    options = argparse.ArgumentParser(
        description="Train every model with its recipe and update docs/models."
    )
    options.add_argument(
        "models", nargs="*", help=f"models among {', '.join(models)}; all by default"
    )
    options.add_argument("--seeds", type=int, default=3)
    args = options.parse_args()
    if unknown := set(args.models) - set(models):
        sys.exit(f"unknown model {', '.join(sorted(unknown))}: choose from {', '.join(models)}")
    for model in args.models or models:
        with tempfile.TemporaryDirectory() as folder:
            measure(model, Path(folder), args.seeds)


def measure(model: str, folder: Path, seeds: int) -> None:
    """Render a project with the model, train it once per seed, and update its page."""
    new = [sys.executable, "-m", "fastproj", "new", "proj", "--model", model, "--gpus", "0"]
    subprocess.run(
        [*new, "--yes", "--no-git", "--output", str(folder)], check=True, stdout=subprocess.DEVNULL
    )
    project = folder / "proj"
    goal = re.search(
        r"^# Expect: (\w+) (<=?|>=) ([\d.]+)",
        (project / "configs/default.yaml").read_text(),
        re.MULTILINE,
    )
    assert goal is not None
    values, seconds = [], []
    for seed in range(seeds):
        started = time.perf_counter()
        _run(
            project,
            "train",
            "--config=configs/default.yaml",
            f"--run.seed={seed}",
            f"--run.name={seed}",
        )
        seconds.append(time.perf_counter() - started)
        rows = [
            json.loads(line)
            for line in (project / f"runs/{seed}/metrics.jsonl").read_text().splitlines()
        ]
        values.append([row for row in rows if row["split"] == "val"][-1][goal[1]])
    low, high = min(values), max(values)
    reached = f"{statistics.median(values):.4g} ({low:.4g} to {high:.4g}, {seeds} seed{'s' * (seeds > 1)})"
    cells = [
        f"validation `{goal[1]}` {goal[2]} {goal[3]}",
        reached,
        f"{statistics.median(seconds):.0f} s",
        machine(),
    ]
    row = f"| {' | '.join(cells)}, torch {version('torch')} |"
    page = PAGES / f"{model}.md"
    page.write_text(
        re.sub(
            r"(\| target \|.*\n\|[-|]+\|\n)(\|.*\n)?",
            lambda head: f"{head[1]}{row}\n",
            page.read_text(),
        )
    )
    print(f"{model}: {row}", flush=True)
    reaches = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}[goal[2]]
    if not all(reaches(value, float(goal[3])) for value in values):
        sys.exit(f"{model} misses {goal[1]} {goal[2]} {goal[3]}: {values}")


def _run(project: Path, module: str, *arguments: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "src"}
    command = [sys.executable, "-m", f"proj.{module}", *arguments]
    device = ["--run.device=cpu"] if module == "train" else []
    command += device
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
