"""All frameworks have equal losses, equal files and interchangeable checkpoints."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from framework_runs import FP32, RANKS, SETTINGS, VARIANTS, assert_equal_runs, read_rows, train_in_turn
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS, MODELS
from program import PROGRAMS, Project
from warm import run_python

OTHERS = FRAMEWORKS[1:]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_losses_equal_the_native_loop(project: Project, tmp_path: Path, model: str) -> None:
    """Accumulation and bf16 are the framework's own, so two models show them: `make test-all` tries all."""
    variants = VARIANTS if EVERY or model in (MODELS[0], ENGINE_MODEL) else {"plain": VARIANTS["plain"]}
    for framework in FRAMEWORKS:
        train_in_turn(project(framework, model), tmp_path / framework, list(variants))
    for framework in OTHERS:
        for name, (_, tolerance) in variants.items():
            largest = assert_equal_runs(tmp_path / framework / name, tmp_path / FRAMEWORKS[0] / name, tolerance)
            print(f"{framework} {model} {name}: {largest:.1e}")


@pytest.mark.slow
def test_losses_equal_the_native_loop_on_two_ranks(project: Project, tmp_path: Path) -> None:
    """The ranks of the other frameworks are on two nodes, as far as they can tell."""
    models = MODELS if EVERY else MODELS[:1]
    for model in models:
        for framework in FRAMEWORKS:
            runs, nodes = tmp_path / f"{model}-{framework}", 1 if framework == FRAMEWORKS[0] else 2
            train_in_turn(project(framework, model), runs, list(RANKS), ranks=2, nodes=nodes)
        for framework in OTHERS:
            for name, (_, tolerance) in RANKS.items():
                native = tmp_path / f"{model}-{FRAMEWORKS[0]}" / name
                largest = assert_equal_runs(tmp_path / f"{model}-{framework}" / name, native, tolerance)
                print(f"{framework} {model} {name}, two ranks: {largest:.1e}")


def test_resume_in_another_framework_is_bit_identical(project: Project, tmp_path: Path) -> None:
    """One framework trains to step 4, the next to step 8, and so on: the losses equal those of an uninterrupted run."""
    options = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", FP32]
    options += [f"--train.steps={4 * len(FRAMEWORKS)}", "--train.eval_every=4", "--log.every=1", "--run.resume=auto"]
    whole = [*options, f"--run.dir={tmp_path}", "--run.name=whole"]
    result = run_python(project(FRAMEWORKS[0], ENGINE_MODEL), "-m", "proj.train", *whole)
    assert result.returncode == 0, result.stderr
    newest = tmp_path / "passed/checkpoints"
    for number, framework in enumerate(FRAMEWORKS, start=1):
        passed = [*options, f"--run.dir={tmp_path}", "--run.name=passed", "--checkpoint.keep=9"]
        result = run_python(project(framework, ENGINE_MODEL), "-m", "proj.train", *passed)
        assert result.returncode == 0, result.stderr
        for checkpoint in newest.glob("step-*"):
            if int(checkpoint.name.removeprefix("step-")) > 4 * number:
                shutil.rmtree(checkpoint)  # as if it had been stopped there
    assert read_rows(tmp_path / "passed") == read_rows(tmp_path / "whole")
    command = ["-m", "proj.tools.evaluate", str(tmp_path / "passed"), "--device=cpu"]  # the same in every framework
    result = run_python(project(FRAMEWORKS[0], ENGINE_MODEL), *command)
    assert result.returncode == 0, result.stderr
    found = json.loads((newest / f"step-{4 * len(FRAMEWORKS):08d}/evaluation.json").read_text())
    assert found["loss"] == pytest.approx(read_rows(tmp_path / "whole")[-1]["loss"], rel=1e-6)


def test_checkpoint_of_another_model_is_refused(project: Project, tmp_path: Path) -> None:
    small = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2"]
    small += [f"--run.dir={tmp_path}", "--run.name=a", "--run.resume=auto"]
    result = run_python(project(OTHERS[0], "resnet"), "-m", "proj.train", *small)
    assert result.returncode == 0, result.stderr
    result = run_python(project(OTHERS[-1], "vit"), "-m", "proj.train", *small)
    assert result.returncode == 1
    assert re.search(r"is of another model or run \(model\.", result.stderr)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_terminated_run_saves_and_asks_to_be_started_again(project: Project, tmp_path: Path, framework: str) -> None:
    result = stop(project(framework, ENGINE_MODEL), tmp_path, signal.SIGTERM)
    assert result.returncode == 75, result.stderr
    line = re.search(
        r"^stopped at step (\d+) \(SIGTERM\); continue with --run.resume auto$", result.stdout, re.MULTILINE
    )
    assert line is not None
    assert (tmp_path / f"a/checkpoints/step-{int(line[1]):08d}/manifest.json").is_file()


def test_second_signal_ends_the_run_at_once(project: Project, tmp_path: Path) -> None:
    """In a step that takes minutes; it says how to continue."""
    result = stop(project(FRAMEWORKS[0], ENGINE_MODEL), tmp_path, signal.SIGINT)
    assert result.returncode == 128 + signal.SIGINT
    assert "ended       by SIGINT after step 4\nkept        no checkpoint" in result.stdout


def stop(folder: Path, runs: Path, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    """Train a run without an end, which sends itself a signal."""
    endless = [*SETTINGS, "--train.steps=1000000", "--train.eval_every=1000000", f"--run.dir={runs}", "--run.name=a"]
    program = str(PROGRAMS / "terminate_itself.py")
    return run_python(folder, program, str(int(number)), *endless, timeout_s=60)


def test_accelerate_counts_steps_that_fp16_skipped(project: Project, tmp_path: Path) -> None:
    """Accelerate itself takes each step of a fused optimizer for made."""
    options = [*SETTINGS, "--train.steps=8", "--speed.precision=fp16", "--optim.schedule=wsd", "--optim.warmup_steps=4"]
    options += [f"--run.dir={tmp_path}", "--run.name=a"]
    result = run_python(project("accelerate", ENGINE_MODEL), str(PROGRAMS / "accelerate_fp16.py"), *options)
    assert result.returncode == 0, result.stderr
    rows = [row for row in read_rows(tmp_path / "a") if row["split"] == "train"]
    assert [row["skipped_steps"] for row in rows] == [1, 1, 1, 2, 2, 2, 2, 2]
    rates = [row["lr"] for row in rows]
    assert (rates[0], rates[3]) == (rates[1], rates[4]), "a skipped step does not advance the schedule"
    assert len({*rates[:5]}) == 3


def test_accelerate_state_is_loaded_on_any_number_of_ranks(project: Project, tmp_path: Path) -> None:
    """And saved again, by the lines that the documentation adds to the loop; of two ranks to the bit."""
    folder = shutil.copytree(project("accelerate", ENGINE_MODEL), tmp_path / "project")
    train = folder / "src/proj/train.py"
    text = train.read_text()
    state = f'"{tmp_path}/state"'
    load, save = (f"accelerator.{call}({state})" for call in ("load_state", "save_state"))
    again = f"if cfg.run.name != 'whole': {load}; {save}"
    text = text.replace("        while not", f"        {again}\n        while not", 1)
    train.write_text(
        text.replace("        run.finish()", f"            if run.progress.step == 5: {save}\n        run.finish()")
    )
    for ranks, names in ((2, ["whole", "two"]), (1, ["one"])):
        options = [
            *SETTINGS,
            FP32,
            "--train.eval_every=4",
            "--log.every=3",
            f"--train.accumulate={4 // ranks}",
            f"--run.dir={tmp_path}",
        ]
        every = json.dumps([[*options, f"--run.name={name}"] for name in names])
        result = run_python(folder, str(PROGRAMS / "train_in_turn.py"), every, ranks=ranks)
        assert result.returncode == 0, result.stderr
    whole, two, one = (read_rows(tmp_path / name) for name in ("whole", "two", "one"))
    assert two == [row for row in whole if row["step"] > 5]
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in two], rel=1e-3)


def test_lightning_logs_and_callbacks_work(project: Project, tmp_path: Path) -> None:
    options = [
        *SETTINGS,
        "--train.steps=6",
        "--train.eval_every=6",
        "--log.every=2",
        f"--run.dir={tmp_path}",
        "--run.name=a",
    ]
    result = run_python(project("lightning", ENGINE_MODEL), str(PROGRAMS / "lightning_logs.py"), *options)
    assert result.returncode == 0, result.stderr
    assert [row["batches_seen"] for row in read_rows(tmp_path / "a") if row["split"] == "train"] == [2, 4, 6]
    read, returned = (re.search(rf"^{word} (.*)$", result.stdout, re.MULTILINE) for word in ("read", "returned"))
    assert read is not None
    assert returned is not None
    assert float(read[1]) == pytest.approx(float(returned[1]), rel=1e-6)
