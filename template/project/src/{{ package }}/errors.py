"""The errors that end a program with one line instead of a traceback; and warnings of one line."""

import warnings

STOPPED, RESTART, UNEXPECTED = 75, 76, 70
"""Exit statuses: stopped by request (EX_TEMPFAIL of sysexits.h); ended, to be restarted; an unexpected exception."""
ONE_SIGNAL_SECONDS = 2.0
"""Signals within this time count as one: the launcher passes on what a terminal may have sent to all processes."""


class UserError(Exception):
    """One line: what is wrong, where, and the way out."""

    status = 1
    """Exit status of the program."""


class UsageError(UserError):
    """The command line, or a YAML file that it names, is wrong."""

    status = 2


class RestartError(UserError):
    """The process has to end, and the run can go on in a new one, which resumes it."""

    status = RESTART


class Stopped(Exception):  # noqa: N818  # it is no error
    """The run was stopped by request; its message says how to continue it."""

    status = STOPPED


class Unfrozen(Stopped):
    """The run goes on from its checkpoint, with all parameters trained: `train.unfreeze_step`."""


def in_one_line(error: UserError) -> str:
    """Return the message; without the traceback of the loader process, if it was raised in one."""
    return "error: " + str(error).strip().splitlines()[-1].split("UserError: ")[-1]


def short_warnings() -> None:
    """Print each warning as one line, without the line of code that it is from."""
    warnings.formatwarning = lambda message, category, *_: (
        f"{'warning' if category is UserWarning else category.__name__}: {' '.join(str(message).split())}\n"
    )
