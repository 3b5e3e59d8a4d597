"""The fixtures `package` and `lightning`: rendered projects, each once per session."""

import hashlib
import os
import sys
from functools import cache
from pathlib import Path

import pytest
from engine import MakePackage, Package
from lightning_runs import LightningProject
from lightning_runs import Project as WithLightning
from program import Fastproj, render_once


@pytest.fixture(scope="session", autouse=True)
def quiet_trackers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what trackers write outside of a run's folder with the tests."""
    os.environ |= {"TRACKIO_DIR": str(tmp_path_factory.mktemp("trackio")), "WANDB_SILENT": "true"}


@pytest.fixture(scope="session")
def package(fastproj: Fastproj, shared_folder: Path) -> MakePackage:
    """Render the project of a model, with components, and import it.

    Several can be imported beside each other.
    """

    @cache
    def render(model: str, *components: str) -> Package:
        name = "-".join([model, *components])
        if len(name) > 60:
            name = f"{model}-{len(components)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        chosen = ",".join(components) or "none"
        answers = ["--model", model, "--components", chosen, "--gpus", "0", "--no-git"]
        root = render_once(fastproj, shared_folder / "engine", name, *answers)
        sys.path.insert(0, str(root / "src"))
        return Package(root)

    return render


@pytest.fixture(scope="session")
def tiny(package: MakePackage, tmp_path_factory: pytest.TempPathFactory) -> MakePackage:
    """Return a project with the small problems of `tests/support/tiny/`, and components."""

    @cache
    def make(*components: str) -> Package:
        found = package("mlp", *components).tiny(tmp_path_factory.mktemp("tiny"))
        sys.path.insert(0, str(found.root / "src"))
        return found

    return make


@pytest.fixture
def p(
    request: pytest.FixtureRequest,
    package: MakePackage,
    tiny: MakePackage,
) -> Package:
    """The project that a file tests: that of its `MODEL`, or else the small problems."""
    model = getattr(request.module, "MODEL", None)
    project: Package = package(model) if model else tiny()
    return project


@pytest.fixture(scope="session")
def lightning(fastproj: Fastproj, shared_folder: Path) -> LightningProject:
    """Render the project of a model with Lightning, and import it.

    Several can be imported beside each other.
    """

    @cache
    def render(model: str) -> WithLightning:
        answers = ["--model", model, "--framework", "lightning", "--gpus", "0", "--no-git"]
        root = render_once(fastproj, shared_folder / "engine", f"lightning-{model}", *answers)
        sys.path.insert(0, str(root / "src"))
        return WithLightning(root)

    return render
