"""The networks equal those of another implementation, transformers, with the same weights."""

import json
import sys
from pathlib import Path

from matrix import FRAMEWORKS
from program import PROGRAMS, Project
from warm import run_python

PACKAGES = Path(sys.prefix, "references")
"""Where `make test` installs transformers: torchmetrics, and so Lightning, would import it if it were found there."""


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
