"""How a program ends that cannot go on: with one line for an expected error, which one of several ranks prints."""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from .config_errors import with_place
from .errors import UserError, in_one_line


def leave(error: BaseException, arguments: list[str] | None = None) -> NoReturn:
    """Report the error that is being handled, and exit; `arguments` are those of the program, without its name.

    An expected error has the place of the option that it is about, if a file sets it. One of several ranks exits at
    once: Python's teardown would wait for ranks that wait for this one.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    line, status = "", 1
    if isinstance(error, UserError):
        error = with_place(error, sys.argv[1:] if arguments is None else arguments)
        line, status = in_one_line(error), error.status
    elif isinstance(error, KeyboardInterrupt):
        status = 128 + 2
    elif alone or isinstance(error, SystemExit):
        raise error
    if alone and status == 1:
        sys.exit(line)
    if (alone or _is_first(line or repr(error))) and status < 128:
        print(line or "".join(traceback.format_exception(error)), file=sys.stderr)
    if alone:
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _is_first(message: str) -> bool:
    """Whether no other rank that torchrun started on this machine has failed yet, which may be why this one does.

    torchrun shows the message at the end of its own report.
    """
    file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))  # .../attempt_0/<local rank>/error.json
    if not file.name:
        return True
    try:
        (file.parents[1] / "failed").touch(exist_ok=False)
    except FileExistsError:
        return False
    record = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
    file.write_text(json.dumps({"message": record}), encoding="utf-8")
    return True
