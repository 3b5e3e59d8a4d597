"""Record docs/recording.svg: a project is rendered and trained in a terminal of 80 columns.

    python docs/programs/recording.py

The session is real: each command runs in a pseudo-terminal, in this Python's environment, and each
line of the picture appears when it was printed, soon after the one before. Where a command prints
many rows of the same kind, the middle ones are left out, which the picture says. A test checks that
its texts and numbers are current.
"""

import os
import re
import sys
import sysconfig
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pexpect
from rich.text import Text

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "recording.svg"
COLUMNS = 80
COMMANDS = ["fastproj new digits --yes", "cd digits", "make train ARGS='--run.name first'"]
SETUP = "$ make setup    # creates .venv, once; not recorded"
KEPT_ROWS = 4
"""Rows that are shown at each end of a long table; those between are left out."""
LONGEST_WAIT_S = 0.4
LINE, CHARACTER, SIZE = 19, 8.0, 13.3
"""Height of a line, width of a character, and size of the font, in pixels."""


@dataclass(frozen=True)
class Printed:
    """A line of the terminal, and when it was complete, in seconds since the start."""

    text: str
    at: float


def main() -> None:
    """Record, and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".gitconfig").write_text(
            "[user]\n  name = Ada Lovelace\n  email = ada@example.org\n"
        )
        FILE.write_text(draw(record(Path(folder))))


def record(folder: Path) -> list[Printed]:
    """Run the commands in a folder, and return what a terminal shows."""
    lines: list[Printed] = []
    started = time.monotonic()
    for command in COMMANDS:
        lines.append(Printed(f"$ {command}", time.monotonic() - started))
        if command.startswith("cd "):
            folder /= command.removeprefix("cd ")
            _share_environment(folder)
            lines.append(Printed(SETUP, time.monotonic() - started))
            continue
        for it in shorten(_run(command, folder)):
            wrapped = textwrap.wrap(
                it.text,
                COLUMNS,
                subsequent_indent="  ",
                drop_whitespace=False,
                break_on_hyphens=False,
            ) or [""]
            lines += [Printed(part, it.at - started) for part in wrapped]
        lines.append(Printed("", time.monotonic() - started))
    return lines[:-1]


def _run(command: str, folder: Path) -> list[Printed]:
    """Run a command in a pseudo-terminal; what a progress bar drew over a line is left out."""
    scripts = f"{Path(sys.executable).parent}:{sysconfig.get_path('scripts')}"
    environment = os.environ | {
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "TERM": "xterm",
        "OMP_NUM_THREADS": "1",
    }
    home = folder if (folder / ".gitconfig").exists() else folder.parent
    environment |= {"PYTHONPATH": f"{ROOT / 'generator'}:{folder / 'src'}", "HOME": str(home)}
    command = re.sub("^fastproj", f"{sys.executable} -m fastproj", command)
    child = pexpect.spawn(
        "sh",
        ["-c", command],
        cwd=str(folder),
        env=environment,
        dimensions=(40, COLUMNS),
        encoding="utf-8",
        timeout=600,
    )
    found = []
    while child.expect(["\r?\n", pexpect.EOF]) == 0:
        found.append(Printed(plain(child.before or ""), time.monotonic()))
    if rest := plain(child.before or ""):
        found.append(Printed(rest, time.monotonic()))
    child.close()
    if child.exitstatus:
        sys.exit(f"{command} ended with {child.exitstatus}: " + "\n".join(it.text for it in found))
    return found


def _share_environment(project: Path) -> None:
    """Let the project's `make` use this Python's packages, so that nothing is installed for the recording."""
    venv = project / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to(sys.executable)
    (venv / "lib").symlink_to(Path(sys.prefix, "lib"))
    (venv / "pyvenv.cfg").write_text(Path(sys.prefix, "pyvenv.cfg").read_text())
    (venv / ".ready").touch()


def plain(text: str) -> str:
    """Return what a terminal shows of a line: after the last carriage return, without codes."""
    return Text.from_ansi(text.rstrip("\r").split("\r")[-1]).plain.rstrip()


def shorten(lines: list[Printed]) -> list[Printed]:
    """Leave out the middle of a long table: lines that differ in their numbers only, and what stands between them."""
    kinds = Counter(kind(line.text) for line in lines)
    rows = [place for place, line in enumerate(lines) if kinds[kind(line.text)] > 2 * KEPT_ROWS]
    if len(rows) <= 2 * KEPT_ROWS:
        return lines
    start, end = rows[KEPT_ROWS - 1] + 1, rows[-KEPT_ROWS]
    left_out = Printed(f"  ... {len(rows) - 2 * KEPT_ROWS} more rows ...", lines[start].at)
    return [*lines[:start], left_out, *lines[end:]]


def kind(text: str) -> str:
    """Return a line without its numbers: rows of one table are of one kind."""
    return re.sub(r"\s+", " ", re.sub(r"[-+]?\d[\d.,]*(e[-+]\d+)?", "0", text))


def draw(lines: list[Printed]) -> str:
    """Return the picture, in which each line appears after the one before; still pictures show all of them."""
    width, height = round(COLUMNS * CHARACTER) + 32, len(lines) * LINE + 56
    parts, at, last = [], 0.0, 0.0
    for number, line in enumerate(lines):
        at += min(line.at - last, LONGEST_WAIT_S)
        last = line.at
        style = f"animation-delay:{at:.2f}s"
        kind = "command" if line.text.startswith("$ ") else "output"
        if line.text:
            place = f'x="16" y="{60 + number * LINE}"'
            parts.append(
                f'<text class="{kind}" {place} style="{style}" xml:space="preserve">{escape(line.text)}</text>'
            )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    dots = "".join(
        f'<circle cx="{22 + 20 * n}" cy="22" r="6" fill="{color}"/>'
        for n, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    css = (
        f"text{{font:{SIZE}px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d6deeb}}"
        ".command{fill:#7fdbca;font-weight:700}"
        "@media (prefers-reduced-motion:no-preference){text{animation:appear .01s both}}"
        "@keyframes appear{from{opacity:0}to{opacity:1}}"
    )
    frame = f'<rect width="{width}" height="{height}" rx="8" fill="#0b1f33"/>'
    return "\n".join([head, f"<style>{css}</style>", frame, dots, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
