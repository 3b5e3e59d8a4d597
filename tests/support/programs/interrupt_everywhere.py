"""Send signal NUMBER at each line in which a scratch folder is made, used and removed.

Prints how many lines there are, and the line and exit status where a folder is left or the status
is another.
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from fastproj import scratch
from fastproj.__main__ import main

number = int(sys.argv[1])
left = []
line = 0
traced = (scratch.__file__, "contextlib.py")


def app(*_: Any, **__: Any) -> None:
    """Stand for the command line."""
    remaining = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal remaining
        if not frame.f_code.co_filename.endswith(traced):
            return None
        remaining -= event == "line"
        if remaining == 0:
            remaining = -1
            signal.raise_signal(number)
        return trace

    sys.settrace(trace)
    with scratch.scratch_folder(Path.cwd(), "proj") as folder:
        (folder / "project").mkdir()
    sys.settrace(None)
    os._exit(0 if remaining < 0 else 9)


sys.modules["fastproj.cli"] = ModuleType("fastproj.cli")
sys.modules["fastproj.cli"].app = app  # type: ignore[attr-defined]
status = None
while status != 9:
    line += 1
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        main()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    folders = list(Path.cwd().iterdir())
    if folders or status not in (0, 9, 128 + number):
        left.append((line, status))
    for folder in folders:
        shutil.rmtree(folder)
print(line, left)
