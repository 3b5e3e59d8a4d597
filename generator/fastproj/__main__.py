"""Start the program: `fastproj`, or `python -m fastproj`."""

import io
import os
import sys
from typing import NoReturn

import typer

from .cli import app
from .shared.errors import FastprojError


def main() -> None:
    """Run the command line. Every expected failure is one line on stderr and a status that is not zero."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold letters that the terminal has not
    try:
        status = app(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name="fastproj") or 0
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as stop:
        status = int(stop.code or 0)
    except Exception as error:
        status = _stop_behind(error)
        if not status:
            _fail(*_told(error))
    if status > 128:
        made = "no half-made project is left" if "new" in sys.argv[1:2] else "nothing was changed"
        _fail(f"stopped; {made}", status)
    sys.exit(status)


def _told(error: Exception) -> tuple[str, int]:
    """Return the line and the status for an expected failure; raise any other again."""
    if isinstance(error, typer.TyperException):
        return f"{error.format_message()} (fastproj --help lists what there is)", error.exit_code
    if isinstance(error, FastprojError):
        return str(error), 1
    if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.filename is None):
        # Python would try, and fail, to write it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return f"what was done could not be printed ({error.strerror}): see that the output can take it", 1
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}; see that it is there, and yours to use", 1
    raise error


def _stop_behind(error: BaseException) -> int:
    """Return the status of the signal that stopped us, where cleaning up after it failed in turn; else 0."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return 130
        if isinstance(cause, SystemExit):
            return int(cause.code or 0)
        cause = cause.__context__
    return 0


def _fail(message: str, status: int) -> NoReturn:
    print(f"fastproj: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
