"""Each tracker really has the metrics of a run that was killed and resumed, each step once."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS, ROOT
from program import PROGRAMS, Project

TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")
STEPS, KILLED = 400, 150


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trackers are large: an environment of their own, which sees that of the tests."""
    folder = tmp_path_factory.mktemp("trackers")
    python, here = folder / "bin/python", Path(pytest.__file__).parents[1]
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    place = next(folder.glob("lib/python*/site-packages"))
    (place / "tests.pth").write_text(f"{here}\n")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "trackio", "wandb", "mlflow"], check=True)
    return python


@pytest.mark.skipif(not EVERY, reason="installs large packages: set EVERY_TEST=1")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tracker", TRACKERS)
def test_tracker_has_each_step_of_a_killed_run_once(
    project: Project, packages: Path, tmp_path: Path, tracker: str
) -> None:
    """Also when the run is then pushed; values that are measured are those of before or after the kill."""
    folder, run = project(FRAMEWORKS[0], ENGINE_MODEL), tmp_path / "runs/a"
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    environment |= {"TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [str(packages), "-m", "proj.train", "--config=configs/default.yaml", "--run.device=cpu", "--run.name=a"]
    command += [f"--run.dir={tmp_path}/runs", "--run.resume=auto", f"--train.steps={STEPS}", "--train.eval_every=50"]
    command += ["--log.every=5", f"--log.tracker={tracker}"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as first:
        while first.poll() is None and not _has_step(run / "metrics.jsonl", KILLED):
            time.sleep(0.05)
        first.kill()
    resumed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    push = [str(packages), "-m", "proj.tools.report", str(run), "--push", tracker]
    for _ in range(60):  # its process may go on for a minute
        pushed = subprocess.run(push, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if "is still being sent" not in pushed.stderr:
            break
        time.sleep(1)
    assert pushed.returncode == 0, pushed.stderr
    reader = [str(packages), str(PROGRAMS / "read_tracker.py"), tracker, str(run)]
    read = subprocess.run(reader, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    found = json.loads(read.stdout.splitlines()[-1])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = {(row["split"], name) for row in rows for name in row if name not in ("split", "step", "seconds")}
    assert {f"{split}/{name}" for split, name in names} == set(found)
    for split, name in names:
        expected = [[row["step"], row[name]] for row in rows if row["split"] == split and name in row]
        values = sorted(found[f"{split}/{name}"])
        assert [step for step, _ in values] == [step for step, _ in expected], f"{split}/{name}"
        if name in ("loss", "accuracy", "lr", "grad_norm"):
            assert [value for _, value in values] == pytest.approx([value for _, value in expected], rel=1e-6)


def _has_step(file: Path, step: int) -> bool:
    lines = file.read_text().splitlines() if file.exists() else []
    return any(f'"step": {at},' in lines[-1] for at in range(step, STEPS)) if lines else False
