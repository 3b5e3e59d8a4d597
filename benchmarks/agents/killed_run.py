"""Resume a run that was trained with options of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from common import NAME, RECIPE, Project, are_close, expect, is_finished, losses

MODEL = "mlp"
OPTIONS = ("--optim.lr=2e-3", "--run.seed=3", "--train.eval_every=40", "--train.epochs=20")
KILLED_AT = 80
UNTIL_KILLED = """
import os, signal, sys
from {name} import checkpoint, train
save = checkpoint.Checkpoints.save
def save_and_die(self, state):
    save(self, state)
    if state["step"] == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.Checkpoints.save = save_and_die
sys.argv[0] = train.__file__
train.main()
"""


def prepare(folder: Path) -> None:
    """Train until the run is killed."""
    program = UNTIL_KILLED.format(name=NAME, step=KILLED_AT)
    command = [sys.executable, "-c", program, "--config", RECIPE, "--run.name=first", *OPTIONS]
    result = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": "src"},
        check=False,
        capture_output=True,
    )
    if result.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the run was not killed: {result.stderr.decode()}")


def check(project: Project) -> None:
    """Compare with a run that nothing stopped."""
    run = project.original / "runs/first"
    record = json.loads((run / "config.json").read_text(encoding="utf-8"))
    expect(is_finished(run), "runs/first is not finished")
    starts = record["starts"]
    expect(starts == [0, KILLED_AT], f"the run started at the steps {starts}")
    whole = project.train(*OPTIONS)
    same = are_close(losses(run, "val"), losses(whole, "val"), relative=1e-3)
    expect(same, "the validations are not those of a run that nothing stopped")
