"""Train a rendered project, and send this process a signal in step 4: NUMBER OPTION [...]; SIGINT twice."""

import importlib
import os
import runpy
import signal
import sys
import threading
import time
from typing import Any

logged: Any = importlib.import_module("proj.log").RunLog
write_row = logged.row
number = int(sys.argv.pop(1))


def terminate(self: Any, split: str, step: int, values: Any) -> None:
    """Write a row; at the fourth, send the signal."""
    write_row(self, split, step, values)
    if step != 4:
        return
    os.kill(os.getpid(), number)
    if number == signal.SIGINT:
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        time.sleep(300)


logged.row = terminate
runpy.run_module("proj.train", run_name="__main__")
