"""Run the program and rendered projects' own tests with other versions of Python and torch.

    python tests/support/versions.py --pythons python3.12 python3.13 --torch 2.11.0 2.14.1

Each pair has an environment of its own, with the newest versions of all other packages, until its
tests end. Outputs are kept in build/versions/.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from matrix import COMPONENTS, ENGINE_MODEL, FRAMEWORKS, ROOT, offered
from requirements import APART

OUTPUT = ROOT / "build/versions"
VERSION = "import platform; print(platform.python_version())"
ADDED = [
    name for name in offered(FRAMEWORKS[0]) if "packages" in COMPONENTS[name] and name not in APART
]
"""Components of the first framework's project: those that need further packages."""
COUNTS = ["tests", "skipped", "failures", "errors"]


class Environment:
    """A virtual environment with a torch, the program, and a home folder."""

    def __init__(
        self,
        folder: Path,
        python: str,
        torch: str,
        log: Path,
    ) -> None:
        """Create the environment; all commands write to the log."""
        self.folder = folder
        self.python = str(folder / "venv/bin/python")
        self.torch = f"torch=={torch}"
        self.log = log
        apart = ("FASTPROJ_", "GIT_", "PIP_CONSTRAINT", "PYTHONPATH", "XDG_CONFIG_HOME")
        self.variables = {
            key: value for key, value in os.environ.items() if not key.startswith(apart)
        }
        self.variables |= {"HOME": str(folder), "OMP_NUM_THREADS": "1"}
        (folder / ".gitconfig").write_text("[user]\nname = Ada Lovelace\nemail = ada@example.org\n")
        log.write_text("")
        self.run(python, "-m", "venv", str(folder / "venv"))
        self.install("--upgrade", "pip>=25.1")
        self.install(str(ROOT))

    def run(self, *command: str, where: str = ".") -> None:
        """Run a command in a folder of this one.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        with self.log.open("a") as log:
            print("$", *command, file=log, flush=True)
            subprocess.run(
                command,
                cwd=self.folder / where,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
            )

    def install(self, *arguments: str, where: str = ".") -> None:
        """Install packages; each module is compiled, and may warn, when it is first imported."""
        pip = [self.python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile"]
        self.run(*pip, *arguments, where=where)

    def fastproj(self, *arguments: str, where: str = ".") -> None:
        """Run the program."""
        self.run(self.python, "-m", "fastproj", *arguments, where=where)


def check(environment: Environment, framework: str) -> list[int]:
    """Render and install a project, run its tests, and return how many passed, skipped and failed.

    Raises:
        subprocess.CalledProcessError: a command before the tests failed, or pytest did not start.
    """
    name = f"proj_{framework}"
    environment.fastproj("new", name, "--framework", framework, "--model", ENGINE_MODEL, "--yes")
    if framework == FRAMEWORKS[0]:
        environment.fastproj("add", *ADDED, where=name)
        environment.run("git", "commit", "--quiet", "--message", "Add components", where=name)
        environment.fastproj("update", "--license", "Apache-2.0", where=name)
    environment.install(
        "--editable",
        ".",
        "--group",
        "dev",
        environment.torch,
        where=name,
    )
    result = environment.folder / f"{name}.xml"
    try:
        environment.run(
            environment.python, "-m", "pytest", "-q", f"--junit-xml={result}", where=name
        )
    except subprocess.CalledProcessError:
        if not result.exists():
            raise
    # pytest has just written it
    found = next(ElementTree.parse(result).iter("testsuite"))  # noqa: S314
    tests, skipped, failures, errors = (int(found.attrib[count]) for count in COUNTS)
    return [tests - skipped - failures - errors, skipped, failures + errors]


def main(arguments: Sequence[str] | None = None) -> None:
    """Check each pair, and print the table."""
    parser = argparse.ArgumentParser(
        description="Test projects with other versions of Python and torch."
    )
    parser.add_argument("--pythons", nargs="+", default=[sys.executable])
    parser.add_argument("--torch", nargs="+", required=True)
    args = parser.parse_args(arguments)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    print(
        "| Python | torch | framework | passed | skipped | failed |\n|---|---|---|---|---|---|",
        flush=True,
    )
    failed = False
    for python, torch in itertools.product(args.pythons, args.torch):
        version = subprocess.check_output(
            [
                python,
                "-c",
                VERSION,
            ],
            text=True,
        ).strip()
        log = OUTPUT / f"python-{version}-torch-{torch}.log"
        with tempfile.TemporaryDirectory() as folder:
            environment = Environment(Path(folder), python, torch, log)
            for framework in FRAMEWORKS:
                try:
                    counts = check(environment, framework)
                except subprocess.CalledProcessError as error:
                    counts = []
                    print(error, file=sys.stderr)
                failed |= not counts or counts[-1] > 0
                print(
                    "|",
                    *[f"{it} |" for it in [version, torch, framework, *counts]],
                    flush=True,
                )
    if failed:
        sys.exit(f"some failed; the outputs are in {OUTPUT}")


if __name__ == "__main__":
    main()
