"""The terminal: whether a user can answer."""

import os
import sys


def interactive() -> bool:
    """Return whether questions can be asked."""
    terminal = bool(sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty())
    return terminal and os.environ.get("TERM") != "dumb"
