"""GPU tests: on a machine with CUDA, each combination is rendered for it and trained there."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from matrix import PAIRS
from program import Fastproj, run_in

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("framework", "model"), PAIRS)
def test_project_trains_on_gpu(fastproj: Fastproj, tmp_path: Path, framework: str, model: str) -> None:
    result = fastproj("new", "proj", "--yes", "--framework", framework, "--model", model, "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "proj"
    assert "gpus: 0" not in (folder / ".copier-answers.yml").read_text(), "this machine has no GPU that nvidia-smi sees"
    for precision in ("bf16", "fp16", "tf32", "fp32"):
        options = ["--run.device=cuda", f"--run.name={precision}", f"--speed.precision={precision}", "--train.steps=60"]
        result = run_in(folder, "launch/local.sh", *options, "--log.every=10")
        assert result.returncode == 0, result.stderr
        rows = [json.loads(line) for line in (folder / "runs" / precision / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if row["split"] == "train"]
        print(f"{framework} {model} {precision}: loss {losses[0]:.3f} to {losses[-1]:.3f}")
        assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(("framework", "model"), PAIRS)
def test_rendered_gpu_tests_pass(fastproj: Fastproj, tmp_path: Path, framework: str, model: str) -> None:
    result = fastproj("new", "proj", "--yes", "--framework", framework, "--model", model, "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    result = run_in(tmp_path / "proj", sys.executable, "-m", "pytest", "-q", "-m", "gpu", REQUIRE_GPU="1")
    assert result.returncode == 0, result.stdout
    assert "skipped" not in result.stdout
    shutil.rmtree(tmp_path / "proj")
