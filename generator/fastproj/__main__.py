"""Start the program: `fastproj`, or `python -m fastproj`."""

import sys
from typing import NoReturn

import typer

from .cli import app
from .errors import FastprojError


def main() -> None:
    """Run the command line. Every expected failure is one line on stderr and a status that is not zero."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="fastproj") or 0)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped; nothing was written", 130)
    except Exception as error:
        if stop := _stop_behind(error):
            sys.exit(stop)
        if isinstance(error, typer.TyperException):
            _fail(f"{error.format_message()} (fastproj --help lists what there is)", error.exit_code)
        if isinstance(error, FastprojError):
            _fail(str(error), 1)
        if isinstance(error, OSError):
            _fail(f"{error.filename or 'the system'}: {error.strerror}; see that it is there, and yours to use", 1)
        raise


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
