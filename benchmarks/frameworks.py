"""Measure the overhead per step of the training loop, on a network so small that little else matters.

    .venv/bin/python benchmarks/frameworks.py          # --keep writes the result to frameworks.json

The mlp is rendered and trained on the CPU, with one thread and the same config and samples, each run in a process of
its own. Each round runs every row once, so that a slow phase of the machine affects all of them. The first log entries
of a run are skipped as warm-up. Prints microseconds per step: the median of all rounds, the lowest and highest, and
the ratio of the medians to the bare step. "bare step" and "tutorial loop" are in programs/baselines.py, and what a
user of Lightning would write is in programs/lightning_module.py. The other rows are the frameworks of `copier.yml`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import yaml
from machine import machine

PROGRAMS = Path(__file__).parent / "programs"
EVERY = 250
STEPS, BATCH, WIDTH = 2500, 32, 16
PLAIN = ["--config=configs/default.yaml", "--run.device=cpu", "--speed.precision=fp32", "--loader.workers=0"]
PLAIN += [f"--log.every={EVERY}", f"--train.steps={STEPS}", "--train.eval_every=100000"]
PLAIN += [f"--train.micro_batch={BATCH}", f"--model.width={WIDTH}", "--model.depth=1", "--optim.lr=1e-4"]
LIGHTNING = ["fit", "--config=configs/default.yaml", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
LIGHTNING += [f"--trainer.log_every_n_steps={EVERY}", "--trainer.max_epochs=null", f"--trainer.max_steps={STEPS}"]
LIGHTNING += ["--trainer.val_check_interval=100000", "--trainer.num_sanity_val_steps=0", f"--data.batch_size={BATCH}"]
LIGHTNING += [f"--model.net.width={WIDTH}", "--model.net.depth=1", "--model.lr=1e-4"]
LIGHTNING += ["--trainer.enable_model_summary=false"]
OPTIONS = {"pytorch": PLAIN, "accelerate": PLAIN, "lightning": LIGHTNING}
NAME = {"pytorch": "--run.name", "accelerate": "--run.name", "lightning": "--trainer.logger.version"}
WARM_UP = 2
"""Log entries to skip."""

BASELINES = {"bare step": "bare", "tutorial loop": "tutorial"}
ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).with_name("frameworks.json")


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description="Measure the overhead per step of each framework.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="write the result to frameworks.json")
    args = parser.parse_args()
    frameworks = list(yaml.safe_load((ROOT / "copier.yml").read_text())["frameworks"]["default"])
    times: dict[str, list[float]] = {row: [] for row in [*BASELINES, *frameworks]}
    if "lightning" in frameworks:
        times["LightningModule by hand"] = []
    with tempfile.TemporaryDirectory() as folder:
        projects = {framework: render(Path(folder), framework) for framework in frameworks}
        for number in range(args.rounds):
            for row, kind in BASELINES.items():
                times[row] += baseline(projects[frameworks[0]], kind)
            for framework in frameworks:
                times[framework] += step_times(framework, projects[framework], f"run{number}")
            if "lightning" in frameworks:
                times["LightningModule by hand"] += by_hand(projects["lightning"])
    bare = statistics.median(times["bare step"])
    for row, found in times.items():
        median = statistics.median(found)
        print(f"{row:24}{median:7.0f} us  ({min(found):.0f} to {max(found):.0f})  {median / bare:.2f}")
    if args.keep:
        keep(times)


def keep(times: dict[str, list[float]]) -> None:
    """Write frameworks.json."""
    rows = {
        row: [round(statistics.median(found)), round(min(found)), round(max(found))] for row, found in times.items()
    }
    shown = {"machine": f"{machine()}, one thread", "versions": f"torch {version('torch')}", "rows": rows}
    RESULT.write_text(json.dumps(shown, indent=2) + "\n")


def render(folder: Path, framework: str) -> Path:
    """Render the mlp with a framework, and return the project's folder."""
    answers = ["--model", "mlp", "--framework", framework, "--gpus", "0", "--yes", "--no-git"]
    (folder / framework).mkdir(exist_ok=True)
    new = [sys.executable, "-m", "fastproj", "new", "proj", *answers, "--output", f"{folder}/{framework}"]
    if not (folder / framework / "proj").exists():
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
    return folder / framework / "proj"


def baseline(project: Path, kind: str) -> list[float]:
    """Run a baseline and return the microseconds per step of each block of steps after the warm-up."""
    printed: list[float] = json.loads(run(project, str(PROGRAMS / "baselines.py"), kind, *PLAIN))
    return printed[WARM_UP:]


def by_hand(project: Path) -> list[float]:
    """Run a LightningModule that is written by hand, and return the microseconds per step after the warm-up."""
    sizes = map(str, (STEPS, EVERY, BATCH, WIDTH))
    printed: list[float] = json.loads(run(project, str(PROGRAMS / "lightning_module.py"), *sizes).splitlines()[-1])
    return printed[WARM_UP:]


def step_times(framework: str, project: Path, name: str) -> list[float]:
    """Train once and return the microseconds per step of each log entry after the warm-up."""
    run(project, "-m", "proj.train", *OPTIONS[framework], f"{NAME[framework]}={name}")
    lines = (project / "runs" / name / "metrics.jsonl").read_text().splitlines()
    rates = [row["samples_per_second"] for row in map(json.loads, lines) if row["split"] == "train"]
    return [BATCH * 1e6 / rate for rate in rates[WARM_UP:]]


def run(project: Path, *command: str) -> str:
    """Run a Python program in a project with one thread, and return its output."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=project, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
