"""Ray Train with two workers on CPUs, which share the batches as two ranks do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .support import SMALL

pytest.importorskip("ray.train", reason='needs ray: pip install "ray[train]"')
ROOT = Path(__file__).parents[3]
PACKAGE = Path(__file__).parents[1].name


def start(
    folder: Path,
    workers: int,
    *options: str,
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"{PACKAGE}.components.ray", "--workers", str(workers), "--"]
    command += ["--config=configs/default.yaml", *SMALL, f"--run.dir={folder}", *options]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_workers_train(tmp_path: Path) -> None:
    done = start(tmp_path, 2, "--train.steps=4", "--train.eval_every=2")
    assert done.returncode == 0, done.stderr
    assert " on 2 x cpu" in done.stdout + done.stderr
    lines = (tmp_path / "first/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 4


@pytest.mark.parametrize(
    ("workers", "options", "message"),
    [
        (2, ["--run.name=null"], "a run without a name cannot be resumed: add --run.name first"),
        (999, [], "--workers is 999, but the Ray cluster has"),
    ],
)
def test_bad_input_is_a_line(
    workers: int, options: list[str], message: str, tmp_path: Path
) -> None:
    done = start(tmp_path, workers, *options)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {message}")
