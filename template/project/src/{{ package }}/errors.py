"""The error that ends a program with one line instead of a traceback."""


class UserError(Exception):
    """One line: what is wrong, where, and the way out."""


def in_one_line(error: UserError) -> str:
    """Return the message; without the traceback of the loader process, if it was raised in one."""
    return "error: " + str(error).strip().splitlines()[-1].split("UserError: ")[-1]
