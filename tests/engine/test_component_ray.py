"""ray: two workers of a cluster on this machine train as two ranks, also if one is killed."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from engine import MakePackage, equal, rows, saved
from program import LIMIT_S

PYTHON = os.environ.get("FASTPROJ_RAY_PYTHON")
OPTIONS = [
    "--train.steps=2000",
    "--train.eval_every=200",
    "--train.batch_size=4",
    "--log.every=200",
]


@pytest.mark.slow
@pytest.mark.test_all
@pytest.mark.skipif(
    not PYTHON, reason="needs FASTPROJ_RAY_PYTHON, a Python with ray[train]: make test-all"
)
def test_killed_worker_changes_nothing(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("ray")
    p.finish(tmp_path / "whole", *OPTIONS, ranks=2)
    command = [str(PYTHON), "-m", f"{p.name}.components.ray", "--workers=2", "--"]
    command += p.arguments(tmp_path / "killed", *OPTIONS)
    variables = os.environ | {"PYTHONPATH": f"{p.root}/src"}
    log = tmp_path / "log"
    with log.open("w") as output:
        run = subprocess.Popen(
            command,
            cwd=p.root,
            env=variables,
            stdout=output,
            stderr=output,
        )
    while not any(tmp_path.glob("killed/a/checkpoints/step-*")):
        assert run.poll() is None, log.read_text()
        time.sleep(0.02)
    found = re.search(r"pid=(\d+)\) world_rank=1", log.read_text())
    assert found
    os.kill(int(found[1]), signal.SIGKILL)
    killed = time.monotonic()
    assert run.wait(LIMIT_S) == 0, log.read_text()
    starts = re.findall(r"from step ([\d,]+)", log.read_text())
    assert len(starts) == 2
    assert starts[1] != "0", "resumed"
    print(f"{time.monotonic() - killed:.0f} s from the kill to the end")
    assert equal(saved(tmp_path / "killed"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "killed", "val") == rows(tmp_path / "whole", "val")
    assert json.loads((tmp_path / "killed/a/config.json").read_text())["steps"] == 2000
