"""All frameworks train alike: the same losses to the last digits, the same files, each from the other's checkpoint."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from matrix import FRAMEWORKS, MODELS, QUESTIONS, ROOT
from program import Project, run_in

OTHERS = FRAMEWORKS[1:]
WITH_PACKAGE = [name for name in FRAMEWORKS if "needs" in QUESTIONS["frameworks"]["default"][name]]
STEPS = 50
SAME = ["--config=configs/default.yaml", "--run.device=cpu", "--loader.workers=0", "--log.tensorboard=false"]
SAME += ["--train.micro_batch=4", f"--train.steps={STEPS}", f"--train.eval_every={STEPS}", "--log.every=1"]
FP32 = "--speed.precision=fp32"
VARIANTS: dict[str, tuple[list[str], float]] = {
    "plain": ([FP32], 1e-6),
    "accumulated": ([FP32, "--train.accumulate=4", "--train.micro_batch=2", "--optim.clip=0.3"], 1e-6),
    "bf16": (["--speed.precision=bf16"], 1e-3),
}
"""Options, and how far the losses may be apart, relatively."""

IN_TURN = """
import importlib, json, sys
distributed, config, train, run, loaders = (
    importlib.import_module(f"proj.{name}") for name in ("distributed", "config", "train", "run", "loaders")
)
whole = loaders.EvalOrder
run.EvalOrder = lambda samples, micro_batch, *place: whole(min(samples, 16 * micro_batch), micro_batch, *place)
seen = []  # the indices of all micro-batches that were trained on
order = loaders.TrainOrder.__iter__
def noting(self):
    for indices in order(self):
        seen.append(indices)
        yield indices
loaders.TrainOrder.__iter__ = noting
with distributed.start("cpu") as world:
    for options in json.loads(sys.argv[1]):
        cfg = config.parse("test", "", options)
        train.train(cfg, world)
        (cfg.run.dir / str(cfg.run.name) / f"seen-{world.rank}").write_text(json.dumps(seen))
        seen.clear()
distributed.end(world)
"""
"""Trains several times in the same process or ranks, and validates on a few samples."""


def train_in_turn(folder: Path, runs: Path, variants: list[str], ranks: int = 1) -> None:
    """Train a project as the variants say, into `runs`."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    every = [[*SAME, *VARIANTS[name][0], f"--run.dir={runs}", f"--run.name={name}"] for name in variants]
    script = runs.with_name(f"in_turn_{runs.name}.py")  # not of a package's name: its folder is searched first
    script.write_text(IN_TURN)
    done = run_in(folder, sys.executable, *torchrun, str(script), json.dumps(every))
    assert done.returncode == 0, done.stderr[-4000:]


def rows(run: Path) -> list[dict[str, Any]]:
    """Return all rows of a run, without what depends on the clock."""
    clock = ("seconds", "samples_per_second")
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key not in clock} for row in logged]


def assert_alike(ours: Path, theirs: Path, tolerance: float) -> float:
    """Hold two runs against each other; return the largest relative difference of a loss."""
    largest = 0.0
    first, second = rows(ours), rows(theirs)
    assert len(first) == len(second) == STEPS + 1
    assert first[-1]["split"] == "val"
    for mine, other in zip(first, second, strict=True):
        assert mine.keys() == other.keys()
        for key in ("split", "step", "lr"):
            assert mine.get(key) == other.get(key)
        for key in mine.keys() - {"split", "step", "lr"}:
            assert mine[key] == pytest.approx(other[key], rel=tolerance, abs=1e-12)
        largest = max(largest, abs(mine["loss"] - other["loss"]) / abs(other["loss"]))
    for seen in sorted(theirs.glob("seen-*")):
        assert (ours / seen.name).read_text() == seen.read_text(), "each rank had the same samples"
    return largest


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


def test_what_accelerate_launch_asks_beyond_the_config_is_refused(project: Project, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proj.train", "--run.device=cpu", f"--run.dir={tmp_path}/runs"]
    done = run_in(project("accelerate", "mlp"), *command, ACCELERATE_USE_DEEPSPEED="true")
    assert done.returncode == 1
    assert done.stderr.startswith("error: accelerate launch asks for DeepSpeed, and")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


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


WITHOUT = """
import importlib.metadata as metadata, runpy, sys
found, (package, there) = metadata.version, sys.argv[1:]
def version(name):
    if name == package:
        if there == "none":
            raise metadata.PackageNotFoundError(name)
        return there
    return found(name)
metadata.version = version
sys.argv = ["proj.train", "--help"]
runpy.run_module("proj.train", run_name="__main__")
"""


@pytest.mark.parametrize("framework", WITH_PACKAGE)
@pytest.mark.parametrize(("there", "told"), [("none", "is not installed"), ("0.9.1", "0.9.1 is too old")])
def test_a_framework_that_is_missing_or_old_names_the_command(
    project: Project, framework: str, there: str, told: str
) -> None:
    needs = QUESTIONS["frameworks"]["default"][framework]["needs"]
    done = run_in(project(framework, "mlp"), sys.executable, "-c", WITHOUT, framework, there)
    assert done.returncode == 1
    least = needs.partition(",")[0]
    assert done.stderr == f"error: {framework} {told}: pip install '{least}'\n"


@pytest.mark.parametrize("framework", WITH_PACKAGE)
def test_the_version_is_the_same_in_all_places(framework: str) -> None:
    needs = QUESTIONS["frameworks"]["default"][framework]["needs"]
    checked = re.search(
        r'needs\("(\w+)", "([\d.]+)"\)', (ROOT / f"template/frameworks/{framework}/train.py").read_text()
    )
    assert checked is not None
    assert needs.startswith(f"{checked[1]}>={checked[2]},<")


def _cannot(framework: str) -> dict[str, str]:
    text = (ROOT / f"template/frameworks/{framework}/train.py").read_text()
    tables = re.findall(r"^CANNOT\w* = (\{.*?\})$", text, re.MULTILINE | re.DOTALL)
    return {key: why for table in tables for key, why in yaml.safe_load(table.replace(",\n}", "}")).items()}


def documented() -> list[list[str]]:
    """The rows of the page's table: key, and a cell for each framework."""
    page = (ROOT / "docs/frameworks.md").read_text()
    assert f"| key | {' | '.join(FRAMEWORKS)} |" in page
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_docs_list_the_unsupported_keys(framework: str) -> None:
    column = 1 + FRAMEWORKS.index(framework)
    unsupported = {row[0].strip("`") for row in documented() if "not supported" in row[column]}
    assert unsupported == {what.partition("=")[0] for what in _cannot(framework)}


def test_the_documentation_lists_every_key(project: Project) -> None:
    done = run_in(project(FRAMEWORKS[0], "mlp"), sys.executable, "-m", "proj.train", "--print_config")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    keys = {f"{name}.{key}" for name, section in config.items() if name not in ("data", "model") for key in section}
    assert {row[0].strip("`") for row in documented()} == keys | {"model.*", "data.*"}


@pytest.mark.parametrize("framework", OTHERS)
def test_what_cannot_be_expressed_is_refused_at_start(project: Project, tmp_path: Path, framework: str) -> None:
    values = {"speed.step_graph": "true", "debug.sync": "warn"}
    assert _cannot(framework)
    for what, why in _cannot(framework).items():
        key, _, value = what.partition("=")
        value = value or values[key]
        option = f"--{key}={value}"
        command = [sys.executable, "-m", "proj.train", "--run.device=cpu", f"--run.dir={tmp_path}/runs", option]
        done = run_in(project(framework, "mlp"), *command)
        assert done.returncode == 1
        assert done.stderr == f"error: {key} is {value}: {why}\n"
    assert not (tmp_path / "runs").exists()
