"""The networks equal those of another implementation, transformers, with the same weights."""

import json
import os
import sys
from pathlib import Path

from matrix import ENGINE_MODEL, FRAMEWORKS
from program import PROGRAMS, Project, run_in
from warm import run_python

PACKAGES = Path(sys.prefix, "references")
"""Where `make test` installs transformers, and peft, which imports it.

Torchmetrics, and so Lightning, would import it if it were found beside them.
"""


def test_networks_equal_those_of_transformers(project: Project) -> None:
    """Outputs and gradients in float64: another epsilon, GELU or stride, or weights that are not tied, differ more."""
    models = ["gpt", "resnet", "vit", "bert"]
    folders = {model: project(FRAMEWORKS[0], model) for model in models}
    sources = [f"{model}={folder / 'src'}" for model, folder in folders.items()]
    result = run_python(folders["gpt"], str(PROGRAMS / "compare_networks.py"), str(PACKAGES), *sources)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    print(result.stdout)
    assert list(found) == models
    assert all(difference < 1e-12 for cases in found.values() for case in cases for difference in case.values())


def test_projects_use_peft_and_pyarrow(project: Project) -> None:
    """Tests of a project that are skipped without them."""
    folder = project(FRAMEWORKS[0], ENGINE_MODEL)
    chosen = ["test_finetuning.py", "test_shards.py", "-k", "lora_is_added or parquet"]
    files = [f"src/proj/tests/{it}" if it.endswith(".py") else it for it in chosen]
    paths = os.pathsep.join([str(folder / "src"), str(PACKAGES)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    result = run_in(folder, *command, PYTHONPATH=paths)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skipped" not in result.stdout
