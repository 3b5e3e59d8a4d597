"""Errors that end a program with one line instead of a traceback."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames


class UserError(Exception):
    """What is wrong, where, and how to fix it."""


class Stopped(Exception):  # noqa: N818
    """The run was asked to stop, and saved a checkpoint. Exit status 75 is EX_TEMPFAIL of sysexits.h: try again."""


@contextmanager
def one_line() -> Iterator[None]:
    """Exit with one line on stderr: with status 1 after an error that the user can fix, with 75 after a stop."""
    try:
        yield
    except (UserError, OSError) as error:
        if int(os.environ.get("RANK", "0")) > 0:
            time.sleep(2)  # if rank 0 has the same error, torchrun ends this process before it prints
        last = str(error).strip().splitlines()[-1]  # an error in a loader worker begins with its traceback
        print(f"error: {last.split('UserError: ')[-1]}", file=sys.stderr, flush=True)
        clear_frames(error.__traceback__)  # frees the loader, so that its workers end before this process
        raise SystemExit(1) from None
    except Stopped as stopped:
        if int(os.environ.get("RANK", "0")) == 0:
            print(stopped, file=sys.stderr, flush=True)
        stopped.__traceback__ = None
        raise SystemExit(75) from None
