"""Do something in a second process meanwhile."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from ..shared.errors import FastprojError


@contextmanager
def beside(task: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Run a task in a process of its own; what is given waits for it, and raises the FastprojError that it raised.

    The process is ended with the block. The task's result is what it leaves on the disk.
    """
    reading, writing = os.pipe()
    ending, living = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(living)
        Thread(target=_end_with_parent, args=(ending,), daemon=True).start()
        _run(task, writing)
    os.close(writing)
    os.close(ending)
    done = False

    def wait() -> None:
        nonlocal done
        if done:
            return
        with os.fdopen(os.dup(reading), encoding="utf-8") as told:
            message = told.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done = True
        if status != 0:
            raise FastprojError(message or f"rendering was stopped from outside (status {status}): try again")

    try:
        yield wait
    finally:
        os.close(reading)
        os.close(living)
        if not done:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _end_with_parent(ending: int) -> None:
    """End once the parent has, which may be killed: it would hold the parent's locks on."""
    os.read(ending, 1)
    os._exit(1)


def _run(task: Callable[[], object], writing: int) -> None:
    """Do the task, tell its error, and end without the cleaning up that is the parent's."""
    status = 1
    try:
        task()
        status = 0
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        message = str(error) if isinstance(error, FastprojError) else f"{type(error).__name__}: {error}"
        os.write(writing, message.encode(errors="backslashreplace")[:4000])
    finally:
        os._exit(status)
