"""The one error that ends a command with a line instead of a traceback."""


class FastprojError(Exception):
    """One line: what is wrong, where, and the way out."""
