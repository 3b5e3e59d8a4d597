"""The one error that ends a program with a line instead of a traceback."""


class UserError(Exception):
    """One line: what is wrong, where, and the way out."""
