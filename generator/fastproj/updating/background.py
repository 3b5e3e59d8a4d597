"""Run a function in a copy of this process. Two renderings at once save a quarter of the time of an update."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ..shared.errors import FastprojError


@contextmanager
def in_background(task: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Start a task, and yield a function that waits for its result (JSON) or raises its FastprojError."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run(task, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, encoding="utf-8") as output:
            yield lambda: _result(output.read())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _run(task: Callable[[], Any], writing: int) -> NoReturn:
    """Do the task, send its result, and exit without the clean-up that the parent does."""
    try:
        os.dup2(writing, 3)
        os.closerange(4, 4096)  # such as the parent's locks, which must not outlive it
        try:
            output = {"result": task()}
        except FastprojError as error:
            output = {"error": str(error)}
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            output = {"error": f"{type(error).__name__}: {error}"}
        os.write(3, json.dumps(output).encode())
    finally:
        os._exit(0)


def _result(output: str) -> Any:
    found = json.loads(output or '{"error": "rendering was interrupted: try again"}')
    if "error" in found:
        raise FastprojError(found["error"])
    return found["result"]
