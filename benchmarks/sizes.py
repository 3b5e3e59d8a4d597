"""Print how large the default rendering of each model is: files, lines of Python and of README.

.venv/bin/python benchmarks/sizes.py          # all models, or some: mlp gpt; --framework lightning
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml
from projects import ROOT, render_project


@dataclass(frozen=True)
class Size:
    """Size of a project."""

    files: int
    source_lines: int
    """Python in src/ without tests."""
    test_lines: int
    readme_lines: int
    longest: tuple[int, str]
    """Lines and name of the longest module."""


MOST_FILES = 45
"""Files of a project without components, at most."""
ADDED = {
    ".git",
    "__pycache__",
    "runs",
    ".venv",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".cache",
}
"""What git, trainings and tools add to a project."""


def lines(file: Path) -> int:
    """Count the lines of a file."""
    return len(file.read_text(encoding="utf-8").splitlines())


def measure(project: Path) -> Size:
    """Measure a rendered project, without what git or a training has added."""
    num_files = 0
    source_lines = 0
    test_lines = 0
    longest = (0, "")
    for file in project.rglob("*"):
        parts = file.relative_to(project).parts
        if file.is_dir() or not ADDED.isdisjoint(parts):
            continue
        num_files += 1
        if file.suffix != ".py" or "src" not in parts:
            continue
        longest = max(longest, (lines(file), file.name))
        if "tests" in file.parent.name:
            test_lines += lines(file)
        else:
            source_lines += lines(file)
    return Size(num_files, source_lines, test_lines, lines(project / "README.md"), longest)


def main() -> None:
    """Render the models and print a table."""
    questions = yaml.safe_load((ROOT / "copier.yml").read_text())
    models = list(questions["models"]["default"])
    options = argparse.ArgumentParser(description="Print the size of each model's project.")
    options.add_argument(
        "models", nargs="*", metavar="MODEL", choices=[*models, []], help="; all by default"
    )
    options.add_argument(
        "--framework", choices=questions["frameworks"]["default"], default="pytorch"
    )
    given = options.parse_args()
    chosen = given.models or models
    print("| model | files | lines in src/ | lines of tests | lines of README | longest module |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in chosen:
            name = f"{model}-project"
            size = measure(
                render_project(Path(folder), name, model, "--framework", given.framework)
            )
            cells = [model, size.files, size.source_lines, size.test_lines, size.readme_lines]
            print("| " + " | ".join(map(str, cells)) + f" | {size.longest[1]}, {size.longest[0]} |")


if __name__ == "__main__":
    main()
