"""Train every model with its recipe, and write the result to its page in docs/models/.

For all models, or for one with more seeds:

    python benchmarks/models.py
    python benchmarks/models.py vae --seeds 5
"""

import argparse
import operator
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
from projects import ROOT, one_thread, read_rows, render_project

PAGES = ROOT / "docs" / "models"


def main() -> None:
    """Measure and write."""
    questions = yaml.safe_load((ROOT / "copier.yml").read_text())
    models = list(questions["models"]["default"])
    known = ", ".join(models)
    parser = argparse.ArgumentParser(
        description="Train every model with its recipe and update docs/models."
    )
    parser.add_argument("models", nargs="*", help=f"models among {known}; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    unknown = set(args.models) - set(models)
    if unknown:
        sys.exit(f"unknown model {', '.join(sorted(unknown))}: choose from {known}")
    for model in args.models or models:
        with tempfile.TemporaryDirectory() as folder:
            measure(model, Path(folder), args.seeds)


def measure(
    model: str,
    folder: Path,
    seeds: int,
) -> None:
    """Render a project with the model, train it once per seed, and update its page."""
    project = render_project(folder, "proj", model)
    config = (project / "configs/default.yaml").read_text()
    goal = re.search(r"^# Expect: (\w+) (<=?|>=) ([\d.]+)", config, re.MULTILINE)
    assert goal is not None
    metric, comparison, target = goal.groups()
    values = []
    seconds = []
    for seed in range(seeds):
        started = time.perf_counter()
        _train(project, seed)
        seconds.append(time.perf_counter() - started)
        values.append(read_rows(project / f"runs/{seed}", "val")[-1][metric])

    limits = f"{min(values):.4g} to {max(values):.4g}"
    unit = "seed" if seeds == 1 else "seeds"
    cells = [
        f"validation `{metric}` {comparison} {target}",
        f"{statistics.median(values):.4g} ({limits}, {seeds} {unit})",
        f"{statistics.median(seconds):.0f} s",
        f"{machine()}, torch {version('torch')}",
    ]
    row = f"| {' | '.join(cells)} |"
    page = PAGES / f"{model}.md"
    table = r"(\| target \|.*\n\|[-|]+\|\n)(\|.*\n)?"
    page.write_text(re.sub(table, lambda head: f"{head[1]}{row}\n", page.read_text()))
    print(f"{model}: {row}", flush=True)
    reaches = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}[comparison]
    if not all(reaches(value, float(target)) for value in values):
        sys.exit(f"{model} misses {metric} {comparison} {target}: {values}")


def _train(project: Path, seed: int) -> None:
    command = [
        sys.executable,
        "-m",
        "proj.train",
        "--config=configs/default.yaml",
        f"--run.seed={seed}",
        f"--run.name={seed}",
        "--run.device=cpu",
    ]
    done = subprocess.run(
        command,
        cwd=project,
        env=one_thread(project),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
