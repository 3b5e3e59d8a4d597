"""Train a rendered project, and send SIGTERM to this process when some steps are logged: OPTION [...]."""

import importlib
import os
import runpy
import signal
from typing import Any

logged: Any = importlib.import_module("proj.log").RunLog
write_row = logged.row


def terminate(self: Any, split: str, step: int, values: Any) -> None:
    """Write a row; after the fourth, terminate."""
    write_row(self, split, step, values)
    if step == 4:
        os.kill(os.getpid(), signal.SIGTERM)


logged.row = terminate
runpy.run_module("proj.train", run_name="__main__")
