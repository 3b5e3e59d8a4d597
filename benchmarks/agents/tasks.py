#!/usr/bin/env python3
"""Tasks for coding agents in projects of fastproj: prepare them, and check what was done.

python benchmarks/agents/tasks.py list
python benchmarks/agents/tasks.py prepare own_csv build/own_csv --without-agents-file
python benchmarks/agents/tasks.py check own_csv build/own_csv     # status 0 if it is done
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import common

FOLDER = Path(__file__).parent
TASKS = {
    "own_csv": "own CSV with a target",
    "new_metric": "a new metric",
    "backbone": "another network in model.py",
    "own_dataset": "own Dataset",
    "new_option": "a new option with a range",
    "label_smoothing": "label smoothing in a model that has none",
    "average": "add EMA, and prove that it acts",
    "launcher": "a SLURM launcher for 4 nodes",
    "slow_run": "find why a run is slow",
    "update_conflict": "update an edited project with a conflict",
    "killed_run": "resume a killed run",
    "two_rates": "compare two learning rates",
}
"""The modules of the tasks, and what each asks for."""


def prepare(name: str, folder: Path, has_agents_file: bool) -> None:
    """Write the text of a task, its project and the template of that into a new folder."""
    task: Any = importlib.import_module(name)
    folder = folder.absolute()
    folder.mkdir(parents=True)
    template = folder / "template.bundle"
    common.write_template(template)
    answer = f"agents={str(has_agents_file).lower()}"
    project = common.render(folder, task.MODEL, "--template", str(template), "--data", answer)
    task.prepare(project)
    add_environment(project)
    if common.git(project, "status", "--porcelain"):
        common.git(project, "add", "--all")
        common.git(project, "commit", "--quiet", "--message", "Our files")
    preamble = (FOLDER / "preamble.md").read_text(encoding="utf-8")
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    (folder / "task.md").write_text(f"{preamble}\n{text}", encoding="utf-8")


def add_environment(project: Path) -> None:
    """Create a `.venv` whose programs are those of the Python that runs this."""
    programs = project / ".venv/bin"
    programs.mkdir(parents=True)
    modules = {"python": "", "fastproj": "-m fastproj", "ruff": "-m ruff", "mypy": "-m mypy"}
    for name, module in modules.items():
        command = f'exec "{sys.executable}" {module} "$@"'
        file = programs / name
        file.write_text(f'#!/bin/sh\nPYTHONPATH="{project / "src"}" {command}\n')
        file.chmod(0o755)
    (project / ".venv/.ready").touch()


def check(name: str, folder: Path) -> int:
    """Say whether a task is done, and return the exit status."""
    task: Any = importlib.import_module(name)
    with common.opened(folder) as project:
        try:
            task.check(project)
        except common.NotDone as problem:
            print(f"{name}: not done: {problem}")
            return 1
    print(f"{name}: done")
    return 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Tasks for coding agents.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the tasks")
    preparing = commands.add_parser("prepare", help="write a task and its project into a folder")
    checking = commands.add_parser("check", help="say whether a task is done")
    for command in (preparing, checking):
        command.add_argument("name", choices=TASKS)
        command.add_argument("folder", type=Path)
    preparing.add_argument("--without-agents-file", action="store_true")
    given = parser.parse_args()
    if given.command == "prepare":
        prepare(given.name, given.folder, not given.without_agents_file)
        return 0
    if given.command == "check":
        return check(given.name, given.folder)
    for name, about in TASKS.items():
        print(f"{name:16} {about}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
