"""The tasks for coding agents: a check passes only if its task is done."""

import subprocess
import sys
from pathlib import Path

import pytest
from matrix import ROOT, tiers

FOLDER = ROOT / "benchmarks/agents"
SOLUTIONS = ROOT / "tests/support/agent_solutions.py"
NAMES = sorted(file.stem for file in FOLDER.glob("*.md") if file.with_suffix(".py").exists())
CHEAP = ["launcher"]
"""The tasks whose check trains nothing."""


def run(*command: str | Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", tiers(CHEAP, (name for name in NAMES if name not in CHEAP)))
def test_check_passes_only_when_the_task_is_done(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "task"
    tasks = FOLDER / "tasks.py"
    options = ["--without-agents-file"]
    prepared = run(tasks, "prepare", name, folder, *options, environment=environment)
    assert prepared.returncode == 0, prepared.stderr
    assert not (folder / "study/AGENTS.md").exists()
    untouched = run(tasks, "check", name, folder, environment=environment)
    assert untouched.returncode == 1, untouched.stderr
    assert untouched.stdout.startswith(f"{name}: not done: ")
    solved = run(SOLUTIONS, name, folder / "study", environment=environment)
    assert solved.returncode == 0, solved.stderr
    done = run(tasks, "check", name, folder, environment=environment)
    assert (done.returncode, done.stdout) == (0, f"{name}: done\n"), done.stdout + done.stderr


def test_each_task_is_listed(environment: dict[str, str]) -> None:
    listed = run(FOLDER / "tasks.py", "list", environment=environment)
    assert sorted(line.split()[0] for line in listed.stdout.splitlines()) == NAMES
    assert len(NAMES) == 12
