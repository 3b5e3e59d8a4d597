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
    except typer.TyperException as error:
        _fail(f"{error.format_message()} (fastproj --help lists what there is)", error.exit_code)
    except FastprojError as error:
        _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped; nothing was written", 130)


def _fail(message: str, status: int) -> NoReturn:
    print(f"fastproj: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
