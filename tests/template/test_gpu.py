"""GPU tests: the rendered projects' own ones, on a machine with a GPU: `make gpu`."""

import shutil
import sys
from pathlib import Path

import pytest
from matrix import COVER
from program import Fastproj, run_in

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("framework", "model"), COVER)
def test_rendered_gpu_tests_pass(
    fastproj: Fastproj, tmp_path: Path, framework: str, model: str
) -> None:
    fastproj(
        "new",
        "proj",
        "--yes",
        "--framework",
        framework,
        "--model",
        model,
        "--output",
        str(tmp_path),
    )
    folder = tmp_path / "proj"
    assert "gpus: 0" not in (folder / ".copier-answers.yml").read_text(), (
        "this machine has no GPU that nvidia-smi sees"
    )
    result = run_in(
        folder,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        REQUIRE_GPU="1",
    )
    assert "skipped" not in result.stdout
    shutil.rmtree(folder)
