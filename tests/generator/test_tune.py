"""`fastproj tune` and `fastproj bench`, with a stand-in for training, and with a real one."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastproj.runs.bench import table
from matrix import ENGINE_MODEL, EVERY
from program import Fastproj, Project, documented_keys

PYTHON = ["--python", sys.executable]
QUICK = ["--rounds", "2", "--seconds", "0.5"]
TRAINER = """
import json, os, pathlib, signal, sys, time

if sys.argv[1] == "-c":
    print(json.dumps(["cpu", 2, "a machine"]))
    sys.exit()
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv if "=" in word)
lightning = "fit" in sys.argv
names = ["data.batch_size", "trainer.accumulate_grad_batches", "data.num_workers"]
if not lightning:
    names = ["train.batch_size", "train.gradient_accumulation_steps", "loader.num_workers"]
batch, accumulate, workers = (int(given.get(name, 0)) for name in names)
if "optim.typo" in given:
    sys.exit("error: unrecognized arguments: --optim.typo")
if batch > LARGEST and lightning:
    os.kill(os.getpid(), signal.SIGKILL)
if batch > LARGEST:
    sys.exit("RuntimeError: CUDA out of memory")
folder = given["trainer.logger.init_args.save_dir"] if lightning else given["run.dir"]
run = pathlib.Path(folder, "trial")
run.mkdir()
if lightning:
    config = {"data": {"batch_size": batch, "num_workers": workers}}
    config["trainer"] = {"accumulate_grad_batches": accumulate}
else:
    train = {"batch_size": batch, "gradient_accumulation_steps": accumulate}
    train["global_batch_size"] = None
    config = {"train": train, "loader": {"num_workers": workers}, "optim": {"max_grad_norm": 1.0}}
(run / "config.json").write_text(json.dumps({"config": config}))
if workers:
    pathlib.Path("waits").touch()
else:
    row = {"split": "train", "samples_per_second": 50 * batch}
    rows = [row | {"step": step, "seconds": 0.2 * step} for step in range(9)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in rows))
time.sleep(600)
"""
"""Stands in for the training command where LARGEST samples fit, and batches take equally long.

With Lightning, the system kills it if more are given.

With workers it writes no rows, and the file `waits`.
"""
GIVEN = {
    "pytorch": "--train.batch_size={} --train.gradient_accumulation_steps={}",
    "lightning": "--data.batch_size={} --trainer.accumulate_grad_batches={}",
}


def stand_in(folder: Path, largest: int) -> list[str]:
    """Return the options of a quick measurement of the stand-in."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable} -IS\n{TRAINER.replace('LARGEST', str(largest))}")
    program.chmod(0o755)
    return [*QUICK, "--python", str(program)]


def bare_project(folder: Path, framework: str) -> Path:
    """Make a project with the files that `tune` reads."""
    for name in ("configs/default.yaml", "src/proj/train.py", "src/proj/model.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "configs/default.yaml").write_text("trainer: {}\n")
    (folder / ".copier-answers.yml").write_text(f"framework: {framework}\n")
    return folder


def tuned(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "configs/tuned.yaml").read_text())
    return found


@pytest.mark.parametrize("framework", GIVEN)
def test_tune_keeps_the_largest_micro_batch_that_fits(
    framework: str, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = bare_project(tmp_path / "proj", framework)
    options = [
        "--only",
        "batch",
        "--options",
        GIVEN[framework].format(16, 4),
    ]
    fastproj("tune", *options, *stand_in(tmp_path, 32), cwd=folder)
    found = tuned(folder)
    text = (folder / "configs/tuned.yaml").read_text()
    if framework == "lightning":
        assert found == {"data": {"batch_size": 32}, "trainer": {"accumulate_grad_batches": 2}}
        problem = "killed, as by a system without memory"
    else:
        problem = "out of memory"
        assert found == {"train": {"batch_size": 32, "gradient_accumulation_steps": 2}}
    together = "# Together: 2.000 times as fast"
    assert re.search(f"^{together}", text, re.MULTILINE), "32 samples in the time of 16"
    assert re.search(
        rf"^#   train.batch_size 64, train.gradient_accumulation_steps 1: {problem}$",
        text,
        re.MULTILINE,
    )
    assert "train.batch_size 8, train.gradient_accumulation_steps 8: 0.50 times as fast" in text


@pytest.mark.slow
@pytest.mark.parametrize("framework", GIVEN if EVERY else ["pytorch"])
def test_tune_measures_a_real_training(
    framework: str, project: Project, fastproj: Fastproj, tmp_path: Path
) -> None:
    """It measures, and keeps what is faster."""
    folder = shutil.copytree(project(framework, ENGINE_MODEL), tmp_path / "proj", symlinks=True)
    options = [
        "--only",
        "batch",
        "--options",
        GIVEN[framework].format(64, 1),
    ]
    rounds = QUICK if EVERY else ["--rounds", "1", "--seconds", "0.1"]
    done = fastproj("tune", *options, *rounds, *PYTHON, cwd=folder)
    wanted = "train.batch_size 32, train.gradient_accumulation_steps 2"
    line = rf"^batch +{wanted}: .*?(\d+\.\d\d) times as fast .*, (not kept|kept)$"
    measured = re.search(line, done.stdout, re.MULTILINE)
    assert measured, done.stdout
    if float(measured[1]) < 1:  # a busy machine may measure otherwise in one short round
        assert measured[2] == "not kept"
    assert (folder / "configs/tuned.yaml").exists() == (measured[2] == "kept")
    assert ("No option was proven faster" in done.stdout) == (measured[2] == "not kept")


def test_interrupted_tune_keeps_what_it_found_and_leaves_no_process(tmp_path: Path) -> None:
    folder = bare_project(tmp_path / "proj", "pytorch")
    options = [
        "--only",
        "batch,workers",
        "--options",
        GIVEN["pytorch"].format(32, 2),
    ]
    command = [sys.executable, "-m", "fastproj", "tune", *options, *stand_in(tmp_path, 64)]
    command.append("--json")
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (folder / "waits").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "fastproj: interrupted; what was found is kept"
    facts = json.loads(printed)  # one object, and the stages on stderr
    assert facts.keys() == documented_keys("tune")
    assert facts["interrupted"]
    assert facts["kept"]["train.batch_size"] == 64
    assert tuned(folder) == {"train": {"batch_size": 64, "gradient_accumulation_steps": 1}}
    assert [process for process in Path("/proc").glob("[0-9]*/cwd") if _is(process, folder)] == []


def _is(link: Path, folder: Path) -> bool:
    with suppress(OSError):  # a process that has ended, or is another user's
        return link.readlink() == folder
    return False


def test_bench_measures_techniques(fastproj: Fastproj, tmp_path: Path) -> None:
    folder = bare_project(tmp_path / "proj", "pytorch")
    options = ["--options", GIVEN["pytorch"].format(64, 1)]
    names = ["batch", "clipping", "--json"]
    done = fastproj("bench", *names, *options, *stand_in(tmp_path, 64), cwd=folder)
    record = json.loads(done.stdout)
    assert record.keys() == documented_keys("bench")
    found = record["techniques"]
    assert [*found] == ["batch", "clipping"]
    assert found["batch"]["ratios"] == pytest.approx([4.0, 4.0]), "64 samples in the time of 16"
    assert found["clipping"]["ratios"] == pytest.approx([1.0, 1.0])
    assert re.search(r"^batch +800 +3,200 +4\.000 +4\.000 to 4\.000$", table(record), re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "--only", "speed"], "there is no stage speed: choose from precision, "),
        (
            ["tune", "--options", "'"],
            "--options cannot be read (No closing quotation): quote them as in a shell",
        ),
        (
            ["tune", "--options", "--optim.typo=1"],
            "the training command fails: unrecognized arguments: --optim.typo",
        ),
        (["bench", "warp"], "warp cannot be measured here: choose from bf16, compile, "),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = bare_project(tmp_path / "proj", "pytorch")
    done = fastproj(
        *arguments,
        *stand_in(tmp_path, 64),
        cwd=folder,
        status=None,
    )
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"fastproj: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "configs/tuned.yaml").exists()


def test_wrong_folders_and_environments_are_one_line(fastproj: Fastproj, tmp_path: Path) -> None:
    folder = tmp_path / "proj"
    (folder / "src/proj").mkdir(parents=True)
    assert "is not in a rendered project" in fastproj("tune", cwd=folder, status=1).stderr
    (folder / ".copier-answers.yml").write_text("framework: pytorch\n")
    assert (
        "has 0 packages with a train.py instead of one"
        in fastproj("tune", cwd=folder, status=1).stderr
    )
    (folder / "src/proj/train.py").touch()
    assert (
        "was rendered by another version: run `fastproj update` first"
        in fastproj("tune", cwd=folder, status=1).stderr
    )
    (folder / "configs").mkdir()
    (folder / "configs/default.yaml").touch()
    assert "run `make setup`, or pass --python" in fastproj("tune", cwd=folder, status=1).stderr
    assert (
        "it does not exist" in fastproj("tune", "--python", "missing", cwd=folder, status=1).stderr
    )
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    python.chmod(0o755)
    assert (
        "cannot import torch (no torch here)"
        in fastproj("tune", "--python", str(python), cwd=folder, status=1).stderr
    )
    (folder / "configs/tuned.yaml").write_text("optim: {lr: 1}\n")
    assert (
        "exists and is not written by tune"
        in fastproj("tune", *PYTHON, cwd=folder, status=1).stderr
    )
    assert (folder / "configs/tuned.yaml").read_text() == "optim: {lr: 1}\n"
