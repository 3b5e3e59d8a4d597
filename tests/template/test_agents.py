"""AGENTS.md of a project: its commands work, and what it names exists."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS, tiers
from program import Fastproj, Project, run_in


def _commands(text: str) -> list[str]:
    (block,) = re.findall(
        r"^```\n(.*?)^```$",
        text,
        re.MULTILINE | re.DOTALL,
    )
    return [line.split(" # ")[0].strip() for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("framework", tiers(FRAMEWORKS[:1], FRAMEWORKS[1:]))
def test_commands_succeed(project: Project, tmp_path: Path, framework: str) -> None:
    """Others run mypy, and the projects' own tests but for `make test-all`."""
    folder = shutil.copytree(project(framework, ENGINE_MODEL), tmp_path / "proj")
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ["python", "ruff", "mypy"]:
        program = f'exec {Path(sys.executable).with_name(name)} "$@"'
        stands_in = name == "mypy"
        (programs / name).write_text(f"#!/bin/sh\n{'touch checked' if stands_in else program}\n")
        (programs / name).chmod(0o755)
    (folder / ".venv/.ready").touch()
    commands = _commands((folder / "AGENTS.md").read_text())
    assert len(commands) == 5
    for command in commands if EVERY else shorter(commands):
        run_in(folder, "sh", "-c", command)
    assert list(folder.glob("runs/*/metrics.jsonl"))
    assert (folder / "checked").exists()
    tests = "".join(file.read_text() for file in (folder / "src/proj/tests").glob("*.py"))
    assert re.search("def test_.*resumes", tests)


def shorter(commands: list[str]) -> list[str]:
    """Train with the option in the shorter training, and leave out the tests, which others run."""
    setup, smoke, train, test, check = commands
    trained = train.replace("make train", smoke)
    return [setup, trained, f"make --dry-run {train[5:]}", test.replace("'", "'--version "), check]


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
    fastproj("new", "first", *options)
    assert "Components: ema, slurm." in (tmp_path / "first/AGENTS.md").read_text()
    fastproj("new", "second", *options, "--data", "agents=false")
    assert not (tmp_path / "second/AGENTS.md").exists()
