"""All frameworks train alike: equal losses, equal files, and interchangeable checkpoints."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from framework_runs import FP32, SAME, VARIANTS, assert_alike, rows, train_in_turn
from matrix import FRAMEWORKS, MODELS
from program import Project, run_in

OTHERS = FRAMEWORKS[1:]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_the_native_loop(project: Project, tmp_path: Path, model: str) -> None:
    for framework in FRAMEWORKS:
        train_in_turn(project(framework, model), tmp_path / framework, list(VARIANTS))
    for framework in OTHERS:
        for name, (_, tolerance) in VARIANTS.items():
            largest = assert_alike(tmp_path / framework / name, tmp_path / FRAMEWORKS[0] / name, tolerance)
            print(f"{framework} {model} {name}: {largest:.1e}")


@pytest.mark.slow
def test_losses_are_those_of_the_native_loop_on_two_ranks(project: Project, tmp_path: Path) -> None:
    models = MODELS if os.environ.get("EVERY_TEST") == "1" else MODELS[:1]
    for model in models:
        for framework in FRAMEWORKS:
            runs = tmp_path / f"{model}-{framework}"
            train_in_turn(project(framework, model), runs, ["plain", "accumulated"], ranks=2)
        for framework in OTHERS:
            for name in ("plain", "accumulated"):
                native = tmp_path / f"{model}-{FRAMEWORKS[0]}" / name
                largest = assert_alike(tmp_path / f"{model}-{framework}" / name, native, 1e-6)
                print(f"{framework} {model} {name}, two ranks: {largest:.1e}")


def test_a_run_goes_on_in_another_framework_to_the_bit(project: Project, tmp_path: Path) -> None:
    """Trained by one framework to step 4, by the next to 8, and so on, it is the run that one of them makes alone."""
    options = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", FP32]
    options += [f"--train.steps={4 * len(FRAMEWORKS)}", "--train.eval_every=4", "--log.every=1", "--run.resume=auto"]
    whole = [*options, f"--run.dir={tmp_path}", "--run.name=whole"]
    done = run_in(project(FRAMEWORKS[0], "mlp"), sys.executable, "-m", "proj.train", *whole)
    assert done.returncode == 0, done.stderr
    newest = tmp_path / "passed/checkpoints"
    for number, framework in enumerate(FRAMEWORKS, start=1):
        passed = [*options, f"--run.dir={tmp_path}", "--run.name=passed", "--checkpoint.keep=9"]
        done = run_in(project(framework, "mlp"), sys.executable, "-m", "proj.train", *passed)
        assert done.returncode == 0, done.stderr
        for checkpoint in newest.glob("step-*"):
            if int(checkpoint.name.removeprefix("step-")) > 4 * number:
                shutil.rmtree(checkpoint)  # as if it had been stopped there
    assert rows(tmp_path / "passed") == rows(tmp_path / "whole")
    for framework in FRAMEWORKS:
        command = ["-m", "proj.tools.evaluate", str(tmp_path / "passed"), "--device=cpu"]
        done = run_in(project(framework, "mlp"), sys.executable, *command)
        assert done.returncode == 0, done.stderr
        found = json.loads((newest / f"step-{4 * len(FRAMEWORKS):08d}/evaluation.json").read_text())
        assert found["loss"] == pytest.approx(rows(tmp_path / "whole")[-1]["loss"], rel=1e-6)


def test_a_checkpoint_of_another_model_is_told_apart(project: Project, tmp_path: Path) -> None:
    small = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2"]
    small += [f"--run.dir={tmp_path}", "--run.name=a", "--run.resume=auto"]
    done = run_in(project(OTHERS[0], "resnet"), sys.executable, "-m", "proj.train", *small)
    assert done.returncode == 0, done.stderr
    done = run_in(project(OTHERS[-1], "vit"), sys.executable, "-m", "proj.train", *small)
    assert done.returncode == 1
    assert re.search(r"is of another model or run \(model\.", done.stderr)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_that_is_told_to_stop_does_not_end_as_done(project: Project, tmp_path: Path, framework: str) -> None:
    folder = project(framework, "mlp")
    endless = [*SAME, "--train.steps=1000000", f"--run.dir={tmp_path}", "--run.name=a"]
    process = subprocess.Popen(
        [sys.executable, "-m", "proj.train", *endless],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    metrics = tmp_path / "a/metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 3):
        time.sleep(0.1)
    process.terminate()
    assert process.wait(60) in (-signal.SIGTERM, 128 + signal.SIGTERM)


LOGGING = """
import sys
from proj import config, distributed, train
step = train.Module.training_step
def training_step(self, batch, batch_idx):
    self.log("batches_seen", float(batch_idx + 1))
    return step(self, batch, batch_idx)
train.Module.training_step = training_step
class Listens(train.lightning.Callback):
    def on_validation_end(self, trainer, module):
        print("heard", trainer.callback_metrics["val_loss"].item())
make = train.make_trainer
def make_trainer(run):
    trainer = make(run)
    trainer.callbacks.append(Listens())
    return trainer
train.make_trainer = make_trainer
with distributed.start("cpu") as world:
    results = train.train(config.parse("test", "", sys.argv[1:]), world)
print("returned", results["loss"])
"""


def test_what_a_lightning_module_logs_is_in_the_rows_and_its_callbacks_hear_of_validations(
    project: Project, tmp_path: Path
) -> None:
    options = [
        *SAME,
        "--train.steps=6",
        "--train.eval_every=6",
        "--log.every=2",
        f"--run.dir={tmp_path}",
        "--run.name=a",
    ]
    done = run_in(project("lightning", "mlp"), sys.executable, "-c", LOGGING, *options)
    assert done.returncode == 0, done.stderr
    assert [row["batches_seen"] for row in rows(tmp_path / "a") if row["split"] == "train"] == [2, 4, 6]
    heard, returned = (re.search(rf"^{word} (.*)$", done.stdout, re.MULTILINE) for word in ("heard", "returned"))
    assert heard is not None
    assert returned is not None
    assert float(heard[1]) == pytest.approx(float(returned[1]), rel=1e-6)
