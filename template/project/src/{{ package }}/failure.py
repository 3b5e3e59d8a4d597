"""How a program ends that cannot go on: with one line for an expected error, which one of several ranks prints."""

import json
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from .config_errors import with_place
from .errors import UNEXPECTED, Stopped, UserError, in_one_line

LOST_CONNECTION = re.compile(r"gloo/transport.*(Connection \w+ by peer|Broken pipe|Connection refused)|ncclRemoteError")
"""What gloo and NCCL raise for a rank that is gone."""


def leave(error: BaseException, arguments: list[str] | None = None) -> NoReturn:
    """Report the error that is being handled, and exit; `arguments` are those of the program, without its name.

    An expected error has the place of the option that it is about, if a file sets it. One of several ranks exits at
    once: Python's teardown would wait for ranks that wait for this one.
    """
    if isinstance(error, Exception) and not isinstance(error, UserError):
        from .loader_worker import explained

        error = explained(error)
    several, launched = os.environ.get("WORLD_SIZE", "1") != "1", "LAUNCH_DIR" in os.environ
    if isinstance(error, UserError):
        error = with_place(error, sys.argv[1:] if arguments is None else arguments)
        message, status = in_one_line(error), error.status
    elif isinstance(error, Stopped):
        message, status = str(error) * (os.environ.get("RANK", "0") == "0"), error.status
    elif isinstance(error, KeyboardInterrupt):
        message, status = "", 128 + signal.SIGINT
    elif (several or launched) and not isinstance(error, SystemExit):
        message = _lost_connection(error) or "".join(traceback.format_exception(error))
        status = UNEXPECTED if launched else 1
    else:
        raise error
    if status == 1 and not several:
        sys.exit(message)
    if several and not isinstance(error, Stopped) and not _is_first(message or "interrupted"):
        message = ""
    if message:
        print(message, file=sys.stdout if isinstance(error, Stopped) else sys.stderr, flush=True)
    if several:
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _lost_connection(error: BaseException) -> str:
    """Return the line of a collective that failed because another rank is gone; empty for other errors."""
    lines = str(error).splitlines()
    found = next((line for line in lines if LOST_CONNECTION.search(line)), "")
    if not found or not isinstance(error, RuntimeError):
        return ""
    why = found.rpartition("cc:")[2].partition("] ")[2].partition(". This is")[0] or found
    return (
        f"error: rank {os.environ.get('RANK', '0')} lost the connection to another rank, which may have ended ({why})"
    )


def _is_first(message: str) -> bool:
    """Whether no other rank of this machine has failed yet, which may be why this one does.

    The launcher reads the message; torchrun shows it at the end of its own report.
    """
    file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))  # .../attempt_0/<local rank>/error.json
    if not file.name:
        return True
    record = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
    try:
        (file.parents[1] / "failed").touch(exist_ok=False)
        file.write_text(json.dumps({"message": record}), encoding="utf-8")
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True
