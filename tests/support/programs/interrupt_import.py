"""Send SIGTERM at each line of importlib that an import runs.

Prints how many lines there are, and those after which the program does not end, or another thread
cannot import.
"""

import os
import signal
import sys
import time
from importlib import import_module
from threading import Thread
from types import FrameType
from typing import Any

from fastproj import signals

UNHARMED = 0
NO_SUCH_LINE = 9


def run(line: int) -> None:
    """Import a module, get the signal at this line, and end with a status."""
    remaining = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal remaining
        if frame.f_code.co_filename != "<frozen importlib._bootstrap>":
            return None
        remaining -= event == "line"
        if remaining == 0:
            signal.raise_signal(signal.SIGTERM)
        return trace

    signals.exit_by_exception()
    is_interrupted = False
    try:
        sys.settrace(trace)
        import_module("colorsys")
        sys.settrace(None)
        if remaining > 0:
            os._exit(NO_SUCH_LINE)
        time.sleep(5)
    except SystemExit:
        sys.settrace(None)
        is_interrupted = True
    other = Thread(target=import_module, args=["stringprep"], daemon=True)
    other.start()
    other.join(5)
    os._exit(UNHARMED if is_interrupted and not other.is_alive() else 1)


line = 0
harmed = []
status = UNHARMED
while status != NO_SUCH_LINE:
    line += 1
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        run(line)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (UNHARMED, NO_SUCH_LINE):
        harmed.append(line)
print(line, harmed)
