"""A sweep that is killed resumes its run; a run that diverges is never the best."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from engine import MakePackage

TRAIN = """
import json, pathlib, sys, time
name, lr = sys.argv[1], float(sys.argv[-1].split("=")[1])
folder = pathlib.Path("runs", name)
folder.mkdir(parents=True, exist_ok=True)
(folder / "starts").open("a").write("x")
for step in range(1, 4):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"split": "val", "step": step, "score": -abs(lr - 0.3)}) + "\\n")
    time.sleep(float(sys.argv[2]))
"""


def command(
    seconds: float,
    *options: str,
) -> list[str]:
    """Return a sweep's arguments; the training pauses after each validation."""
    training = [sys.executable, "-c", TRAIN, "{name}", str(seconds)]
    return ["search.yaml", "--metric=score", *options, "--", *training]


@pytest.fixture
def sweep(package: MakePackage) -> ModuleType:
    return importlib.import_module(f"{package('mlp', 'sweep').name}.components.sweep")


@pytest.fixture(autouse=True)
def folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text("optim.lr: {low: 0.001, high: 1.0, log: true}\n")
    return tmp_path


def test_value_that_is_not_finite_is_never_the_best(
    sweep: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diverging = [word.replace("-abs(lr - 0.3)", "float('nan')") for word in command(0)]
    with pytest.raises(SystemExit) as ended:
        sweep.main([*diverging[:2], "--trials=1", *diverging[2:]])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert "sweep-0 pruned: score nan" in printed.out
    message = "error: no trial ended with a finite score, so there is no runs/sweep/best.yaml\n"
    assert printed.err == message
    assert not (folder / "runs/sweep/best.yaml").exists()
    sweep.main(command(0, "--trials=2"))
    assert "of sweep-1" in (folder / "runs/sweep/best.yaml").read_text()


def test_killed_sweep_resumes_its_run(sweep: ModuleType, folder: Path) -> None:
    source = str(Path(sweep.__file__ or "").parents[2])
    program = [sys.executable, "-m", sweep.__name__]
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    killed = subprocess.Popen(
        program + command(3600, "--trials=1"),
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )
    while not (folder / "runs/sweep-0/metrics.jsonl").exists():
        assert killed.poll() is None
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    sweep.main(command(0, "--trials=1"))
    assert (folder / "runs/sweep-0/starts").read_text() == "xx", "under its name"
    assert len(list(folder.glob("runs/*/metrics.jsonl"))) == 1
