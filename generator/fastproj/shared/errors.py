"""The error that ends a command with one line instead of a traceback."""

import re


class FastprojError(Exception):
    """An expected failure: what is wrong, where, and how to fix it, in one line."""


class UsageError(FastprojError):
    """The command line has to be corrected: a value is not allowed, or an option is missing."""


def without_passwords(text: str) -> str:
    """Return a text in which URLs have no password and no token."""
    return re.sub(r"(https?://)[^\s/@]+@|(\w://[^\s/:@]*:)[^\s/@]*@", r"\1\2***@", text)
