"""The error that ends a command with one line instead of a traceback."""


class FastprojError(Exception):
    """An expected failure: what is wrong, where, and how to fix it, in one line."""
