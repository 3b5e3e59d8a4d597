"""The commands of a rendered GPU workflow, on a machine without the GPUs of the answers."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from matrix import ENGINE_MODEL, FRAMEWORKS
from program import Project, run_in


def _steps(folder: Path) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = yaml.safe_load(
        (folder / ".github/workflows/gpu.yml").read_text()
    )["jobs"]["train"]["steps"]
    return steps


@pytest.fixture
def folder(project: Project, tmp_path: Path) -> Path:
    """Return a project for two nodes of eight GPUs, whose virtual environment is this one."""
    folder = shutil.copytree(
        project(
            FRAMEWORKS[0],
            ENGINE_MODEL,
            "nodes",
        ),
        tmp_path / "proj",
    )
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / ".venv/.ready").touch()
    return folder


def test_workflow_trains_with_the_processes_of_the_runner(folder: Path) -> None:
    config = folder / "configs/default.yaml"
    changed = {"run": {"device": "cpu"}, "speed": {"precision": "fp32", "compile": "off"}}
    settings = yaml.safe_load(config.read_text())
    for section, values in changed.items():
        settings[section] = {**settings.get(section, {}), **values}
    config.write_text(yaml.safe_dump(settings))
    (step,) = (step for step in _steps(folder) if "make train" in step.get("run", ""))
    run_in(folder, "sh", "-c", step["run"], **step["env"])
    assert len(list(folder.glob("runs/*/checkpoints/step-00000020"))) == 1


def test_smoke_test_trains_on_any_machine(folder: Path) -> None:
    run_in(folder, "make", "smoke")
    assert len(list(folder.glob("runs/*/checkpoints/step-00000020"))) == 1
