"""`tools/bench.py` of a rendered project finds what a technique gives, with real runs."""

import json
import re
import shutil
import statistics
import sys
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS
from program import Project, run_in

DELAY_MS, WORK_MS = 5.0, 5.0
ONLY = ["--only=planted", "--rounds=7", "--steps=300"]
PLANTED = f"""
build_fast = build


def wait(seconds: float) -> None:
    import time

    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def build(cfg: ModelConfig, spec: Spec) -> nn.Module:
    model = build_fast(cfg, spec)
    seconds = ({WORK_MS} + {DELAY_MS} * cfg.slow) / 1000
    model.register_forward_pre_hook(lambda *_: wait(seconds))
    return model
"""
"""A step without the delay has work, too: after any that takes milliseconds, the rest of a small step,
whose code and data have left the processor's caches, takes up to a millisecond more.
"""


@pytest.mark.skipif(not EVERY, reason="takes minutes: set EVERY_TEST=1")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_planted_delay_is_attributed_to_its_technique(project: Project, tmp_path: Path, framework: str) -> None:
    folder = shutil.copytree(project(framework, ENGINE_MODEL), tmp_path / "project")
    network, table = folder / "src/proj/model.py", folder / "src/proj/tools/bench_techniques.py"
    field = r'\1    slow: bool = False\n    """Planted."""\n'
    text, number = re.subn(r'(class ModelConfig\(.*\):\n(?:    """.*?"""\n\n)?)', field, network.read_text(), count=1)
    assert number == 1
    network.write_text(text + PLANTED)
    row = '\nTECHNIQUES = (\n    switch("planted", "none", "model.slow", "true", "false"),\n'
    table.write_text(table.read_text().replace("\nTECHNIQUES = (\n", row))
    result = run_in(folder, sys.executable, "-m", "proj.tools.bench", *ONLY, "--json")
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    step = {name: statistics.median(run["step_ms"]) for name, run in found["runs"].items()}
    print(f"{framework}: {step['config - planted'] - step['config']:.2f} ms")
    assert step["config - planted"] - step["config"] == pytest.approx(DELAY_MS, rel=0.2), found["runs"]
    assert found["effects"]["config - planted"]["kind"] == "faster"
    assert "/28 config: " in result.stderr
