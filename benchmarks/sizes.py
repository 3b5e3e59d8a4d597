"""Print how large the default rendering of each model is: files, lines of Python without and with tests, README.

.venv/bin/python benchmarks/sizes.py          # all models, or some: mlp gpt; --framework lightning
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


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


def lines(file: Path) -> int:
    """Count the lines of a file."""
    return len(file.read_text(encoding="utf-8").splitlines())


def measure(project: Path) -> Size:
    """Measure a rendered project, without what git or a training has added."""
    added = {
        ".git",
        "__pycache__",
        "runs",
        ".venv",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".cache",
    }
    files = [
        file
        for file in project.rglob("*")
        if file.is_file() and not added & {*file.relative_to(project).parts}
    ]
    python = [
        file for file in files if file.suffix == ".py" and "src" in file.relative_to(project).parts
    ]
    tests = [file for file in python if "tests" in file.parent.name]
    modules = [file for file in python if file not in tests]
    return Size(
        files=len(files),
        source_lines=sum(map(lines, modules)),
        test_lines=sum(map(lines, tests)),
        readme_lines=lines(project / "README.md"),
        longest=max((lines(file), file.name) for file in python),
    )


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
            new = [
                sys.executable,
                "-m",
                "fastproj",
                "new",
                f"{model}-project",
                "--model",
                model,
                "--gpus",
                "0",
            ]
            new += ["--framework", given.framework]
            subprocess.run(
                [*new, "--yes", "--no-git", "--output", folder],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            size = measure(Path(folder, f"{model}-project"))
            cells = [model, size.files, size.source_lines, size.test_lines, size.readme_lines]
            print("| " + " | ".join(map(str, cells)) + f" | {size.longest[1]}, {size.longest[0]} |")


if __name__ == "__main__":
    main()
