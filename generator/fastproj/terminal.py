"""The terminal: whether a user can answer, and the result of a command."""

import os
import sys

from .shared.errors import without_passwords


def report(text: str, done: str) -> None:
    """Print the result of a command. That it cannot be printed does not undo it, and is no failure."""
    try:
        print(without_passwords(text), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that Python does not fail to flush it at exit
        print(f"fastproj: {done}, but the report cannot be written ({error.strerror})", file=sys.stderr)


def interactive() -> bool:
    """Return whether questions can be asked."""
    terminal = bool(sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty())
    return terminal and os.environ.get("TERM") != "dumb"
