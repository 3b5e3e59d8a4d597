"""The errors that end a program with one line instead of a traceback."""


class UserError(Exception):
    """One line: what is wrong, where, and the way out."""

    status = 1
    """Exit status of the program."""


class UsageError(UserError):
    """The command line, or a YAML file that it names, is wrong."""

    status = 2


class RestartError(UserError):
    """The process has to end, and the run can go on in a new one, which resumes it."""

    status = 76


def in_one_line(error: UserError) -> str:
    """Return the message; without the traceback of the loader process, if it was raised in one."""
    return "error: " + str(error).strip().splitlines()[-1].split("UserError: ")[-1]
