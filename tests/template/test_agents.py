"""AGENTS.md of a project: its commands work, and what it names exists."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS
from program import Fastproj, Project, run_in

LONG = ["make train", "make check"]
"""Commands that other tests run too, in minutes: here with `make test-all` only."""


def _commands(text: str) -> list[str]:
    (block,) = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line.split(" # ")[0].strip() for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_commands_succeed(project: Project, tmp_path: Path, framework: str) -> None:
    folder = shutil.copytree(project(framework, ENGINE_MODEL), tmp_path / "proj")
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ["python", "ruff", "mypy"]:
        program = Path(sys.executable).with_name(name)
        (programs / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (programs / name).chmod(0o755)
    (folder / ".venv/.ready").touch()
    commands = _commands((folder / "AGENTS.md").read_text())
    assert len(commands) == 5
    for command in commands:
        if EVERY or not command.startswith(tuple(LONG)):
            result = run_in(folder, "sh", "-c", command)
            assert result.returncode == 0, command + result.stdout + result.stderr
    assert list(folder.glob("runs/*/metrics.jsonl"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_files_exist_and_length_is_limited(project: Project, framework: str) -> None:
    folder = project(framework, ENGINE_MODEL)
    text = (folder / "AGENTS.md").read_text()
    files = re.findall(r"`(src/[^`]+)`", text)
    assert len(files) >= 4
    assert [file for file in files if not (folder / file).exists()] == []
    assert len(text.splitlines()) <= 60


def test_components_are_current_and_the_file_can_be_left_out(
    fastproj: Fastproj, tmp_path: Path
) -> None:
    options = ["--yes", "--no-git", "--output", str(tmp_path), "--components", "ema,slurm"]
    assert fastproj("new", "first", *options).returncode == 0
    assert "Components: ema, slurm." in (tmp_path / "first/AGENTS.md").read_text()
    assert fastproj("new", "second", *options, "--data", "agents=false").returncode == 0
    assert not (tmp_path / "second/AGENTS.md").exists()
