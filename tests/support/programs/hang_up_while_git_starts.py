"""Run fastproj, and send it SIGHUP while it starts `git clone`: ARGUMENTS."""

import os
import runpy
import signal
import subprocess
import threading
from typing import Any

FORK: Any = subprocess._fork_exec  # type: ignore[attr-defined]
forked = threading.Event()


def fork(command: list[str | bytes], *options: Any) -> Any:
    """Start a process; the thread sends the signal while Python waits until it runs the command."""
    process = FORK(command, *options)
    if "clone" in map(os.fsdecode, command):
        forked.set()
    return process


def hang_up() -> None:
    """Send the signal."""
    forked.wait()
    os.kill(os.getpid(), signal.SIGHUP)


if __name__ == "__main__":
    subprocess._fork_exec = fork  # type: ignore[attr-defined]
    threading.Thread(target=hang_up, daemon=True).start()
    runpy.run_module("fastproj", run_name="__main__")
