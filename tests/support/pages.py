"""Follow a page of the docs in a shell.

Run its commands, and compare what they print with what it shows.
"""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from matrix import EVERY, ROOT
from program import finish

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?(?:dev\d+\.?)?")
SHORT = "--train.steps 4"
"""What each training gets in `make test`: numbers differ, and nothing else."""


def blocks(page: str, heading: str) -> list[tuple[str, str]]:
    """Return the language and the text of each code block below a heading."""
    text = "\n" + (ROOT / "docs" / page).read_text()
    level = heading.partition(" ")[0]
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no {heading}"
    section = re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return [(match[1], match[2]) for match in BLOCK.finditer(section)]


def commands(block: str) -> list[str]:
    """Return the commands of a block; a here-document belongs to the command before."""
    found: list[str] = []
    end = ""
    for line in block.splitlines():
        if end:
            found[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line:
            found.append(line)
            here = re.search(r"<<'(\w+)'", line)
            end = here[1] if here else ""
    return found


@dataclass
class Shell:
    """Runs a page's commands, each in the folder to which the ones before have changed."""

    folder: Path
    environment: dict[str, str]
    skipped: tuple[str, ...] = ()
    """Starts of commands that other tests run."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Exit statuses other than 0."""
    printed: str = ""
    """What the last block has printed."""

    def follow(
        self,
        page: str,
        heading: str,
        *files: str,
    ) -> None:
        """Run the commands below a heading, and compare the output that the page shows.

        Code is written to the files, one after the other.
        """
        rest = list(files)
        for language, text in blocks(page, heading):
            if language in ("python", "yaml"):
                (self.folder / rest.pop(0)).write_text(text)
            elif language == "":
                self.printed = "".join(self.run(command) for command in commands(text))
            elif language == "output":
                missing = first_missing(text, self.printed)
                assert missing is None, f"{page}: {missing!r} is not in\n{self.printed}"

    def run(self, command: str) -> str:
        """Run a command, and return what it prints.

        `make setup` makes an environment of this Python.
        """
        if command.startswith(self.skipped):
            return ""
        if command == "make setup":
            make_environment(self.folder)
            return ""
        place = Path(self.environment["HOME"]) / "cwd"
        script = f"{shorter(command)}\nstatus=$?; pwd > {place}; exit $status"
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        printed, _ = finish(process)
        expected = self.statuses.get(command.partition("  #")[0].strip(), 0)
        assert process.returncode == expected, f"{command}: {process.returncode}\n{printed}"
        self.folder = Path(place.read_text().strip())
        return printed


def shorter(command: str) -> str:
    """Return a training that takes seconds, but in `make test-all`."""
    if EVERY or not command.startswith("make train"):
        return command
    return re.sub(r"ARGS='([^']*)'", rf"ARGS='\1 {SHORT}'", command)


def make_environment(project: Path) -> None:
    """Make a `.venv` as `make setup` does, whose programs are those of this Python."""
    programs = project / ".venv/bin"
    programs.mkdir(parents=True)
    python = f"PYTHONPATH={project / 'src'} exec {sys.executable}"
    for name, command in (
        ("python", python),
        ("ruff", f"{python} -m ruff"),
        ("mypy", f"{python} -m mypy"),
    ):
        (programs / name).write_text(f'#!/bin/sh\n{command} "$@"\n')
        (programs / name).chmod(0o755)
    (project / ".venv/.ready").touch()


def first_missing(shown: str, printed: str) -> str | None:
    """Return the first shown line that was not printed, numbers and precision apart.

    Lines between two `...` must be printed one after the other.
    """
    rest = [plain(line) for line in printed.splitlines()]
    for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE):
        lines = [plain(line) for line in part.splitlines()]
        starts = [place for place in range(len(rest)) if rest[place : place + len(lines)] == lines]
        if not starts:
            return next((line for line in lines if line not in rest), part)
        rest = rest[starts[0] + len(lines) :]
    return None


def plain(line: str) -> str:
    """Return a line without what differs between machines: numbers, precision, folders, blanks."""
    line = re.sub(
        r"\b(?:bf16|fp32)\b",
        "precision",
        " ".join(line.split()),
    )
    line = re.sub(r"(?<!\S)/\S*/", "/", line)
    return re.sub(r"\b[0-9a-f]{7,}\b|" + NUMBER.pattern, "#", line)
