"""The Dockerfile and the development container: their base and GPUs are those of the answers."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from matrix import ENGINE_MODEL, FRAMEWORKS
from program import Fastproj, Project, run_in

COMPONENTS = ["--components", "docker,devcontainer"]
HADOLINT = os.environ.get("FASTPROJ_HADOLINT") or shutil.which("hadolint")


@pytest.fixture(scope="session")
def without_gpu(fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("containers")
    fastproj(
        "new",
        "proj",
        "--model",
        ENGINE_MODEL,
        *COMPONENTS,
        "--no-git",
        "--yes",
        "--output",
        str(folder),
    )
    return folder / "proj"


def steps(folder: Path) -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments."""
    text = re.sub(
        r"^#.*\n|\\\n",
        "",
        (folder / "Dockerfile").read_text(),
        flags=re.MULTILINE,
    )
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dockerfile_has_a_cuda_base_for_gpus_only(
    framework: str, project: Project, without_gpu: Path
) -> None:
    for folder, base in (
        (project(framework, ENGINE_MODEL, "nodes"), "nvidia/cuda:13."),
        (without_gpu, "python:3.12-"),
    ):
        found = steps(folder)
        assert found[0][0] == "FROM"
        assert found[0][1].startswith(base)
        assert found[-1] == ("ENTRYPOINT", '["launch/local.sh"]'), "the command of the answers"
        assert ("USER", "1000:1000") in found
        copied = [value.split()[0] for name, value in found if name == "COPY"]
        assert copied[1:] == ["pyproject.toml", "configs", "launch", "src"], (
            "no data, runs or secrets"
        )
        requirements = next(place for place, (_, value) in enumerate(found) if "uv sync" in value)
        assert "--mount=type=cache" in found[requirements][1]
        assert requirements < found.index(("COPY", "src src")), "an edit does not install again"
        text = (folder / "Dockerfile").read_text()
        assert ("--gpus all" in text) == (folder != without_gpu)
        assert len(text.splitlines()) <= 80


def test_development_container_asks_for_gpus_that_are_there(
    project: Project, without_gpu: Path
) -> None:
    for folder in (project(FRAMEWORKS[0], ENGINE_MODEL, "nodes"), without_gpu):
        text = (folder / ".devcontainer/devcontainer.json").read_text()
        config = json.loads(
            re.sub(
                r"^ *//.*\n",
                "",
                text,
                flags=re.MULTILINE,
            )
        )
        assert (
            ("--gpus" in config["runArgs"])
            == (folder != without_gpu)
            == ("hostRequirements" in config)
        )
        assert config["postCreateCommand"] == "make setup"
        assert config["remoteUser"] != "root"


@pytest.mark.skipif(
    not HADOLINT,
    reason="needs FASTPROJ_HADOLINT, by tests/support/programs/install_checkers.sh: make test",
)
def test_hadolint_finds_nothing(project: Project, without_gpu: Path) -> None:
    for folder in (project(FRAMEWORKS[0], ENGINE_MODEL, "nodes"), without_gpu):
        run_in(folder, str(HADOLINT), "Dockerfile")


@pytest.mark.slow
@pytest.mark.test_all
def test_steps_of_the_dockerfile_run_in_order(without_gpu: Path, tmp_path: Path) -> None:
    """In folders of their own, as no container engine runs here.

    The packages are those of the tests.
    """
    app = tmp_path / "app"
    environment = tmp_path / "venv"
    folder = tmp_path
    (environment / "bin").mkdir(parents=True)
    programs = {
        "uv": 'ls pyproject.toml && echo "$@" > uv-called',
        "python3": f'exec {sys.executable} "$@"',
    }
    for name, script in programs.items():
        (environment / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (environment / "bin" / name).chmod(0o755)
    changes: dict[str, Any] = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": "",
        "PYTHON": "",
    }
    for name, value in steps(without_gpu):
        value = (
            value.replace("/app", str(app))
            .replace("/opt/venv", str(environment))
            .replace("$PATH", changes["PATH"])
        )
        if name == "WORKDIR":
            folder = Path(value)
            folder.mkdir()
        elif name == "ENV":
            changes |= dict(it.split("=") for it in value.split())
        elif name == "COPY" and not value.startswith("--from"):
            files = [it for it in value.split()[:-1] if "[" not in it]
            run_in(
                without_gpu,
                "cp",
                "-r",
                *files,
                str(folder / value.split()[-1]),
            )
        elif name == "RUN" and "useradd" not in value:
            command = re.sub(r"--mount=\S+ *", "", value).replace("--owner=1000 --group=1000", "")
            run_in(folder, "sh", "-ec", command, **changes)
    assert (folder / "uv-called").read_text() == "sync --no-dev --no-install-project\n"
    (command,) = [json.loads(value) for name, value in steps(without_gpu) if name == "ENTRYPOINT"]
    run_in(folder, *command, *shlex.split("--run.name first --train.steps 20"), **changes)
    assert (app / "runs/first/metrics.jsonl").exists()
