"""`fastproj tune` and `fastproj bench` on projects whose fastest options are known, as a test plants them."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS
from program import LIMIT_S, Fastproj, Project
from trained import slow_project

PYTHON = ["--python", sys.executable]
QUICK = ["--rounds", "1", "--seconds", "0.5", *PYTHON]
LIMIT = """

_fetch = _Slow.__getitems__


def _limited(self, indices):
    if len(indices) > 32:
        raise RuntimeError("CUDA out of memory")
    return _fetch(self, indices)


_Slow.__getitems__ = _limited
"""
"""Added to data.py: no more than 32 samples fit."""
SMALL = {
    "lightning": "--data.batch_size 16 --trainer.accumulate_grad_batches 4",
    "pytorch": "--train.micro_batch 16 --train.accumulate 4",
}


def tuned(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "configs/tuned.yaml").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "lightning"] if EVERY else ["pytorch"])
def test_tune_keeps_the_largest_micro_batch_that_fits(
    framework: str, project: Project, fastproj: Fastproj, tmp_path: Path
) -> None:
    """Each batch takes 20 ms, so the fastest micro-batch is the largest one, and 64 samples do not fit."""
    folder = slow_project(project(framework, ENGINE_MODEL), tmp_path, 0.02, 0.0)
    with (folder / "src/proj/data.py").open("a") as file:
        file.write(LIMIT)
    options = ["--only", "batch", "--options", SMALL[framework]]
    done = fastproj("tune", *options, *QUICK, cwd=folder)
    assert done.returncode == 0, done.stderr
    found, text = tuned(folder), (folder / "configs/tuned.yaml").read_text()
    if framework == "lightning":
        assert found == {"data": {"batch_size": 32}, "trainer": {"accumulate_grad_batches": 2}}
    else:
        assert found == {"train": {"micro_batch": 32, "accumulate": 2}}
    ratio = re.search(r"^# Together .* samples per second instead of .*: ([\d.]+) times as fast", text, re.MULTILINE)
    assert ratio is not None
    assert float(ratio[1]) > 1.5, "32 samples in the time of 16"
    assert re.search(r"^#   train.micro_batch 64, train.accumulate 1: out of memory$", text, re.MULTILINE)
    assert "train.micro_batch 8, train.accumulate 8: " in text


@pytest.mark.slow
def test_interrupted_tune_keeps_what_it_found_and_leaves_no_process(project: Project, tmp_path: Path) -> None:
    folder = slow_project(project(FRAMEWORKS[0], ENGINE_MODEL), tmp_path, 0.02, 0.0)
    options = ["--only", "batch,workers", "--options", "--train.micro_batch 32 --train.accumulate 2"]
    command = [sys.executable, "-m", "fastproj", "tune", *options, *QUICK]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "not kept" not in (line := process.stdout.readline()) or "batch 64" in line:
            assert line, "the stage of the batch has ended"
        while sum(_is(link, folder) for link in Path("/proc").glob("[0-9]*/cwd")) < 2:  # the next stage starts one
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "fastproj: interrupted; what was found is kept"
    assert tuned(folder) == {"train": {"micro_batch": 64, "accumulate": 1}}
    assert [process for process in Path("/proc").glob("[0-9]*/cwd") if _is(process, folder)] == []


def _is(link: Path, folder: Path) -> bool:
    with suppress(OSError):  # a process that has ended, or is another user's
        return link.readlink() == folder
    return False


@pytest.mark.slow
def test_bench_measures_techniques(project: Project, fastproj: Fastproj, tmp_path: Path) -> None:
    """A process of the loader waits while the model trains, so a slow loader gains from it."""
    folder = slow_project(project(FRAMEWORKS[0], ENGINE_MODEL), tmp_path, 0.02, 0.0)
    done = fastproj("bench", "batch", "clipping", *QUICK, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "runs/bench.json").read_text())["techniques"]
    assert [*found] == ["batch", "clipping"]
    assert found["batch"]["ratios"][0] > 2.5, "64 samples in the time of 16"
    assert len(found["clipping"]["ratios"]) == 1
    assert re.search(r"^batch +[\d,]+ +[\d,]+ +[34]\.\d\d ", done.stdout, re.MULTILINE), done.stdout
    assert (folder / "runs/bench.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "--only", "speed"], "there is no stage speed: choose from precision, "),
        (["tune", "--options", "'"], "--options cannot be read (No closing quotation): quote them as in a shell"),
        (["tune", "--options", "--optim.typo 1"], "the training command fails: unrecognized arguments: --optim.typo"),
        (["bench", "warp"], "warp cannot be measured here: choose from bf16, compile, "),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, project: Project, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = project(FRAMEWORKS[0], ENGINE_MODEL)
    done = fastproj(*arguments, *PYTHON, cwd=folder)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"fastproj: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "configs/tuned.yaml").exists()


def test_wrong_folders_and_environments_are_one_line(project: Project, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = tmp_path / "proj"
    (folder / "src/proj").mkdir(parents=True)
    assert "is not in a rendered project" in fastproj("tune", cwd=folder).stderr
    original = project(FRAMEWORKS[0], ENGINE_MODEL)
    (folder / ".copier-answers.yml").write_text((original / ".copier-answers.yml").read_text())
    assert "has 0 packages with a train.py instead of one" in fastproj("tune", cwd=folder).stderr
    (folder / "src/proj/train.py").touch()
    assert "was rendered by another version: run `fastproj update` first" in fastproj("tune", cwd=folder).stderr
    (folder / "configs").mkdir()
    (folder / "configs/default.yaml").touch()
    assert "run `make setup`, or pass --python" in fastproj("tune", cwd=folder).stderr
    assert "it does not exist" in fastproj("tune", "--python", "missing", cwd=folder).stderr
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    python.chmod(0o755)
    assert "cannot import torch (no torch here)" in fastproj("tune", "--python", str(python), cwd=folder).stderr
    (folder / "configs/tuned.yaml").write_text("optim: {lr: 1}\n")
    assert "exists and is not written by tune" in fastproj("tune", *PYTHON, cwd=folder).stderr
    assert (folder / "configs/tuned.yaml").read_text() == "optim: {lr: 1}\n"
