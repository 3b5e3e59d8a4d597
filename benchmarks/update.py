"""Time `fastproj update` against `copier update` on a real rendering.

    python benchmarks/update.py

Uses two versions of this repository's template; the second changes some files of the engine. Each
round runs every command once, on a fresh copy of the project. Prints the median, lowest and highest
in milliseconds.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from machine import summary
from projects import ROOT

ROUNDS = 9
FASTPROJ = [sys.executable, "-m", "fastproj"]
COMMANDS = {
    "fastproj update": [*FASTPROJ, "update"],
    "fastproj update --dry-run": [*FASTPROJ, "update", "--dry-run"],
    "fastproj status": [*FASTPROJ, "status"],
    "copier update": [sys.executable, "-m", "copier", "update", "--defaults", "--quiet"],
}


def main() -> None:
    """Run the rounds and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        environment = os.environ | {"HOME": folder, "XDG_CONFIG_HOME": folder}
        (work / ".gitconfig").write_text("[user]\nname = a\nemail = a@example.org\n")
        files = _project(work, environment)
        taken: dict[str, list[float]] = defaultdict(list)
        for _ in range(ROUNDS):
            for name, command in COMMANDS.items():
                shutil.rmtree(work / "copy", ignore_errors=True)
                shutil.copytree(work / "proj", work / "copy", symlinks=True)
                started = time.perf_counter()
                done = subprocess.run(
                    command,
                    cwd=work / "copy",
                    env=environment,
                    check=False,
                    capture_output=True,
                )
                taken[name].append((time.perf_counter() - started) * 1000)
                assert done.returncode == (3 if name == "fastproj status" else 0), done.stderr
    print(f"{files} files in the rendering")
    for name, times in taken.items():
        middle, low, high = summary(times, digits=0)
        print(f"{name:28}{middle:7.0f} ms  ({low:.0f} to {high:.0f})")


def _project(work: Path, environment: dict[str, str]) -> int:
    """Make a bundle with two versions, and a project from the first; return its number of files."""

    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", *arguments],
            cwd=work / "template",
            env=environment,
            check=True,
            capture_output=True,
        )

    def release(version: str) -> None:
        git("add", "--all")
        git("commit", "--quiet", "--message", version)
        git("tag", version)
        git("bundle", "create", "--quiet", str(work / "team.bundle"), "--tags", "HEAD")

    without_cache = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "template", work / "template/template", ignore=without_cache)
    shutil.copy(ROOT / "copier.yml", work / "template")
    git("init", "--quiet")
    release("v1.0.0")
    new = [*FASTPROJ, "new", "proj", "--yes", "--template", str(work / "team.bundle")]
    subprocess.run(
        new,
        cwd=work,
        env=environment,
        check=True,
        capture_output=True,
    )
    template = work / "template/template"
    for name in ("loader", "checkpoint", "log", "optim"):
        with (template / f"frameworks/pytorch/{name}.py").open("a") as file:
            file.write("# newer\n")
    (template / "project/src/{{ package }}/newer.py").write_text('"""New."""\n')
    release("v1.1.0")
    count = 0
    for folder, _, names in os.walk(work / "proj"):
        if ".git" not in Path(folder).parts:
            count += len(names)
    return count


if __name__ == "__main__":
    main()
