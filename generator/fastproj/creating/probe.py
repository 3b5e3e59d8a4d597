"""Read system files and the output of system tools. A failure costs at most three seconds and never raises."""

import os
import platform
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TIMEOUT_S = 3.0
_MOST_OUTPUT = 1 << 16  # what a pipe holds; a tool that prints more blocks, and times out


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
    """Return the output of a tool; empty if it is missing or fails, and unless it is missing, add why to `notes`.

    After the timeout, the tool is killed with all processes that it started.
    """
    tool = command[0]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except FileNotFoundError:
        return ""
    except OSError as error:
        notes.append(f"{tool} could not be started: {error.strerror}")
        return ""
    assert process.stdout is not None
    with process.stdout as stdout:
        try:
            status = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            notes.append(f"{tool} did not finish in {TIMEOUT_S:g} s")
            return ""
        finally:
            _kill_group(process)
        os.set_blocking(stdout.fileno(), False)  # a process that left the group may still have it open
        text = (stdout.read(_MOST_OUTPUT) or b"").decode(errors="replace")
    if status != 0:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
        notes.append(f"{tool} failed with status {status}: {printable(first)}")
    return text if status == 0 else ""


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a tool and the processes that it started. One that hangs in the driver cannot be killed, and is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.2)
