"""Measure the overhead per step of each framework, on a network so small that little else matters.

    .venv/bin/python benchmarks/frameworks.py

The mlp of each framework is rendered and trained on the CPU, with one thread and the same config and samples, each run
in a separate process. Each round runs every row once, so that a slow phase of the machine affects all of them. The
first log entries of a run are skipped as warm-up. Prints microseconds per step: the median of all rounds, the lowest
and highest, and the ratio to the plain PyTorch loop. Additional rows enable what users of a framework have by default.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SAME = ["--config=configs/default.yaml", "--run.device=cpu", "--speed.precision=fp32", "--loader.workers=0"]
SAME += ["--log.tensorboard=false", "--log.every=250", "--train.steps=2500", "--train.eval_every=100000"]
SAME += ["--train.micro_batch=32", "--model.width=16", "--model.depth=1", "--optim.lr=1e-4"]
WARM_UP = 2
"""Log entries to skip."""

ROWS: dict[str, tuple[str, str]] = {
    "pytorch": ("pytorch", ""),
    "accelerate": ("accelerate", ""),
    "accelerate, without the optimizer's search for lomo_optim": (
        "accelerate",
        "import accelerate.optimizer; accelerate.optimizer.is_lomo_available = lambda: False",
    ),
    "lightning": ("lightning", ""),
    "lightning, with progress bar": ("lightning", "changes = {'enable_progress_bar': True}"),
    "lightning, `self.log` of the loss in each step": ("lightning", "logs = True"),
    "lightning, `self.log` and a CSV logger": ("lightning", "logs = True; changes = {'logger': CSVLogger('logs')}"),
    "lightning, all defaults and `self.log`": (
        "lightning",
        "logs = True; changes = {'logger': CSVLogger('logs')}\n"
        "changes |= {'enable_progress_bar': True, 'enable_checkpointing': True}",
    ),
}
"""Framework, and code that modifies it."""

RUN = """
import json, sys
import proj.train as train
from proj import config, distributed
logs, changes = False, {}
if hasattr(train, "lightning"):
    from lightning.pytorch.loggers import CSVLogger
# changes
if changes:
    trainer = train.lightning.Trainer
    train.lightning.Trainer = lambda **options: trainer(**{**options, **changes})
if logs:
    step = train.Module.training_step
    def training_step(self, batch, batch_idx):
        loss = step(self, batch, batch_idx)
        self.log("logged_loss", loss)
        return loss
    train.Module.training_step = training_step
with distributed.start("cpu") as world:
    train.train(config.parse("benchmark", "", sys.argv[1:]), world)
"""


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description="Measure the overhead per step of each framework.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {row: [] for row in ROWS}
    with tempfile.TemporaryDirectory() as folder:
        for framework in {framework for framework, _ in ROWS.values()}:
            answers = ["--model", "mlp", "--framework", framework, "--gpus", "0", "--yes", "--no-git"]
            (Path(folder) / framework).mkdir()
            new = [sys.executable, "-m", "fastproj", "new", "proj", *answers, "--output", f"{folder}/{framework}"]
            subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
        for number in range(rounds):
            for row, (framework, changes) in ROWS.items():
                name = f"{number}-{len(taken[row])}-{list(ROWS).index(row)}"
                taken[row] += step_times(Path(folder) / framework / "proj", name, changes)
    native = statistics.median(taken["pytorch"])
    for row, times in taken.items():
        median = statistics.median(times)
        print(f"{row:56}{median:7.0f} us  ({min(times):.0f} to {max(times):.0f})  {median / native:.2f}")


def step_times(project: Path, name: str, changes: str) -> list[float]:
    """Train once and return the microseconds per step of each log entry after the warm-up."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN.replace("# changes", changes), *SAME, f"--run.name={name}"]
    subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True)
    lines = (project / "runs" / name / "metrics.jsonl").read_text().splitlines()
    rates = [row["samples_per_second"] for row in map(json.loads, lines) if row["split"] == "train"]
    return [32e6 / rate for rate in rates[WARM_UP:]]


if __name__ == "__main__":
    main()
