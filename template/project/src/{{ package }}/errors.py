"""The one error that ends a program with a line instead of a traceback."""


class UserError(Exception):
    """One line: what is wrong, where, and the way out."""


def in_one_line(error: UserError) -> str:
    """Return the message; of one that was raised in a loader process, without that process's traceback."""
    return "error: " + str(error).strip().splitlines()[-1].split("UserError: ")[-1]
