"""A repository that `make release` can release."""

import sys
from pathlib import Path

from history import FIRST, Repository
from matrix import ROOT

MAKEFILE = """\
release:
\t@{python} {program} "$$VERSION"
test-all:
\t@echo "tested $(ARGS)" >> {log}
\t@test ! -e red
"""
CHANGELOG = "# Changelog\n\n## {} (not released)\n\n- It is better.\n"


def releasable(folder: Path) -> Repository:
    """Make a repository with a Makefile whose tests fail if there is a file `red`."""
    made = Repository(folder / "repository")
    made.start()
    made.write(
        {
            **FIRST,
            "CHANGELOG.md": CHANGELOG.format("0.1.0"),
            ".gitignore": "/red\n",
        }
    )
    program = ROOT / "generator/release.py"
    made.write(
        {"Makefile": MAKEFILE.format(python=sys.executable, program=program, log=folder / "tested")}
    )
    made.commit("The template", "0.1.0.dev0")
    return made


def state(repository: Repository) -> tuple[str, ...]:
    return (
        repository.git("rev-parse", "HEAD"),
        repository.git("tag"),
        repository.git("status", "--porcelain"),
        repository.git("diff"),
    )
