"""Read system files and the output of system tools. A failure costs at most three seconds and never raises."""

import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 3.0


def read_file(file: Path) -> str:
    """Return the content of a file; empty if it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def field(pattern: str, text: str) -> str:
    """Return the group of a pattern that matches at the start of a line; empty if none does."""
    found = re.search(f"^{pattern}", text, re.MULTILINE)
    return found[1] if found else ""


def mebibytes(size: str) -> int | None:
    """Convert a number of bytes to MiB; None if it is not a number."""
    return int(size) >> 20 if size.isdecimal() else None


def sysctl(key: str) -> str:
    """Return a value of macOS's `sysctl`; empty on other systems."""
    return run_tool(["sysctl", "-n", key], []).strip() if platform.system() == "Darwin" else ""


def printable(text: str) -> str:
    """Replace characters that control a terminal, and truncate the text."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


def run_tool(command: Sequence[str], notes: list[str]) -> str:
    """Return the output of a tool; empty if it is missing or fails, and unless it is missing, add why to `notes`."""
    tool = command[0]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        return ""
    except OSError as error:
        notes.append(f"{tool} could not be started: {error.strerror}")
        return ""
    except subprocess.TimeoutExpired:
        notes.append(f"{tool} did not finish in {TIMEOUT_S:g} s")
        return ""
    text = done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return text
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    notes.append(f"{tool} failed with status {done.returncode}: {printable(first)}")
    return ""
