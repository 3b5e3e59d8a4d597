"""The entry point: `fastproj`, or `python -m fastproj`."""

import io
import os
import sys
from typing import NoReturn


def main() -> None:
    """Run the command line.

    An expected failure prints one line to stderr and exits with a nonzero status.
    """
    if sys.platform == "win32":
        guide = "learn.microsoft.com/windows/wsl"
        _fail(f"on Windows, fastproj runs in WSL2 only: install it there ({guide})", 1)
    from . import signals  # Windows has no SIGHUP

    signals.exit_by_exception()
    _print_anything()
    printed = False  # by the command
    try:
        from .cli import app  # inside `try`, as a signal may arrive during the import

        status = app(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name="fastproj") or 0
        printed = True
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as error:
        status = int(error.code or 0)
    except KeyboardInterrupt:  # declined, or Ctrl-C at a prompt
        status = 130
    except Exception as error:
        _fail(*_describe(error))
    if status > 128:
        outcomes = {
            "new": "no incomplete project is left",
            "tune": "what was found is kept",
            "compare": "run the same command to continue",
        }
        outcome = outcomes.get("".join(sys.argv[1:2]), "nothing was changed")
        _fail(f"interrupted; {outcome}", status, printed)
    sys.exit(status)


def _print_anything() -> None:
    """Let any encoding print any text."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # not if it is closed
        sys.stdout.reconfigure(errors="backslashreplace")


def _describe(error: Exception) -> tuple[str, int]:
    """Return the message and exit status for an expected failure; raise any other again."""
    import typer

    from .errors import FastprojError
    from .show import unwritable

    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fastproj"
        message = error.format_message()
        if "(Possible options: " in message:
            message = message.replace(", ", " or ").replace(
                " (Possible options: ", ". Did you mean "
            )
            message = message.replace(")", "?")
        message = message.replace("Input should be", "it must be").partition(", unable to parse")[0]
        end = "" if message.endswith((".", "?")) else "."
        return f"{message}{end} See {command} --help.", error.exit_code
    if isinstance(error, FastprojError):
        return str(error), error.status
    if not isinstance(error, OSError):
        raise error
    if error.filename is None:
        # so that Python does not fail to flush it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return unwritable(error), 1
    fix = "check that it exists and that you may access it"
    return f"{error.filename}: {error.strerror}: {fix}", 1


def _fail(message: str, status: int, printed: bool = False) -> NoReturn:
    from .errors import as_object, printable, wrapped

    message = printable(" ".join(message.split()))
    if "--json" in sys.argv and not printed:
        print(as_object(message))
    line = f"fastproj: {message}"
    if sys.stderr is not None and sys.stderr.isatty():
        line = wrapped(line)
    print(line, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
