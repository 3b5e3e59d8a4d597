"""The fixtures `package` and `lightning`: rendered projects, each once per session."""

import fcntl
import hashlib
import os
import sys
from functools import cache
from pathlib import Path

import pytest
from engine import MakePackage, Package
from lightning_runs import LightningProject
from lightning_runs import Project as WithLightning
from program import Fastproj


@pytest.fixture(scope="session", autouse=True)
def quiet_trackers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what trackers write outside of a run's folder with the tests, before one of them is imported."""
    os.environ |= {"TRACKIO_DIR": str(tmp_path_factory.mktemp("trackio")), "WANDB_SILENT": "true"}


@pytest.fixture(scope="session")
def package(fastproj: Fastproj, shared_folder: Path) -> MakePackage:
    """Render the project of a model, with components, and import it; several can be imported beside each other."""

    @cache
    def render(model: str, *components: str) -> Package:
        output, name = shared_folder / "engine", "-".join([model, *components])
        if len(name) > 60:
            name = f"{model}-{len(components)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        output.mkdir(exist_ok=True)
        with open(output / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (output / name).exists():
                answers = [
                    "--model",
                    model,
                    "--components",
                    ",".join(components) or "none",
                    "--gpus",
                    "0",
                ]
                result = fastproj(
                    "new", name, *answers, "--yes", "--no-git", "--output", str(output)
                )
                assert result.returncode == 0, result.stderr
        sys.path.insert(0, str(output / name / "src"))
        return Package(output / name)

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


@pytest.fixture(scope="session")
def lightning(fastproj: Fastproj, shared_folder: Path) -> LightningProject:
    """Render the project of a model with Lightning, and import it; several can be imported beside each other."""

    @cache
    def render(model: str) -> WithLightning:
        output, name = shared_folder / "engine", f"lightning-{model}"
        output.mkdir(exist_ok=True)
        with open(output / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (output / name).exists():
                answers = ["--model", model, "--framework", "lightning", "--gpus", "0"]
                result = fastproj(
                    "new", name, *answers, "--yes", "--no-git", "--output", str(output)
                )
                assert result.returncode == 0, result.stderr
        sys.path.insert(0, str(output / name / "src"))
        return WithLightning(output / name)

    return render
