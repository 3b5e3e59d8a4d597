"""Each model trains on an accelerator that has no values: nothing stays on the host, and the host reads nothing."""

import json
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS, MODELS
from program import Project
from warm import run_python

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "train_on_fake_device.py"
FIXED = ["--config=configs/default.yaml", "--speed.precision=fp32", "--speed.compile=off", "--log.progress=false"]
FIXED += ["--log.mfu=false", "--train.steps=4", "--train.eval_every=4", "--log.every=2", "--loader.workers=0"]
VARIANTS: list[list[str]] = [
    [],
    ["--train.accumulate=2", "--train.ema=0.9", "--optim.schedule=cosine"],
    ["--optim.name=sgd", "--optim.fused=false", "--optim.clip=null"],
    ["--optim.name=muon"],
    ["--speed.activation_checkpointing=blocks"],
]
"""Options of the engine, beside the defaults."""
OTHERS = [framework for framework in FRAMEWORKS[1:] if framework != "lightning"]  # which knows its own devices only
PAIRS = [(FRAMEWORKS[0], model) for model in MODELS] + [(framework, ENGINE_MODEL) for framework in OTHERS]


def _run(folder: Path, runs: Path, variants: list[list[str]], fault: str = "") -> str:
    every = [[*FIXED, f"--run.dir={runs}", f"--run.name={number}", *more] for number, more in enumerate(variants)]
    result = run_python(folder, str(PROGRAM), json.dumps(every), *[fault] * bool(fault))
    assert (result.returncode == 0) == (not fault), result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize(("framework", "model"), PAIRS)
def test_model_trains_on_a_fake_device(project: Project, tmp_path: Path, framework: str, model: str) -> None:
    variants = VARIANTS if EVERY or model == ENGINE_MODEL else VARIANTS[:1]
    if EVERY and model != ENGINE_MODEL:
        variants = [options for options in variants if "--optim.name=muon" not in options]  # for 2-D weights only
    printed = _run(project(framework, model), tmp_path, variants)
    assert printed.count("validation  ") == len(variants)


@pytest.mark.parametrize(
    ("fault", "error"),
    [("item", "DataDependentOutputException"), ("host", "Expected all tensors to be on the same device")],
)
def test_planted_faults_are_found(project: Project, tmp_path: Path, fault: str, error: str) -> None:
    assert error in _run(project(FRAMEWORKS[0], ENGINE_MODEL), tmp_path, VARIANTS[:1], fault)
