"""The errors that end a command with one line instead of a traceback."""

import re


class FastprojError(Exception):
    """An expected failure: what is wrong, where, and how to fix it, in one line."""

    status = 1
    """Exit status of the program."""


class UsageError(FastprojError):
    """The command line has to be corrected: a value is not allowed, or an option is missing."""

    status = 2


def without_passwords(text: str) -> str:
    """Return a text in which URLs have no password and no token."""
    return re.sub(r"(https?://)[^\s/@]+@|(\w://[^\s/:@]*:)[^\s/@]*@", r"\1\2***@", text)
