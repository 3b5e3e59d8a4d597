"""The errors that end a program with one line instead of a traceback."""


class UserError(Exception):
    """One line: what is wrong, where, and the way out."""

    status = 1
    """Exit status of the program."""


class UsageError(UserError):
    """The command line, or a YAML file that it names, is wrong."""

    status = 2


class Stopped(Exception):
    """The run was stopped by request; its message says how to continue it."""

    status = 75
    """Exit status, of temporary failures in sysexits.h: start the same command again."""


def in_one_line(error: UserError) -> str:
    """Return the message; without the traceback of the loader process, if it was raised in one."""
    return "error: " + str(error).strip().splitlines()[-1].split("UserError: ")[-1]
