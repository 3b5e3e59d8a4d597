"""Run a function in a copy of this process with limited resources: templates are rendered there, as none is trusted."""

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from .errors import FastprojError
from .scratch import SIGNALS

# A template takes a second, a few MB and files of some KB.
LIMITS = {resource.RLIMIT_CPU: 30, resource.RLIMIT_AS: 2 << 30, resource.RLIMIT_FSIZE: 1 << 28}
_FORK = get_context("fork")


@contextmanager
def in_child(task: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Start a task, and yield a function that waits for its result or raises its error.

    Other threads must have ended, as only this one is copied. The child does not outlive the context.
    """
    receiver, sender = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_run, args=(task, sender), daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until there is someone who ends the child
    try:
        child.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sender.close()
        yield lambda: _result(receiver)
    finally:
        child.kill()
        child.join()
        receiver.close()


def _run(task: Callable[[], Any], sender: Connection) -> None:
    """Do the task with limited resources, and send its result or its error."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for kind, most in LIMITS.items():
        hard = resource.getrlimit(kind)[1]
        with suppress(ValueError, OSError):  # macOS does not know each
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        outcome = task()
    except MemoryError:
        outcome = FastprojError("the template needs more than 2 GiB of memory: simplify it")
    except (FastprojError, OSError) as error:
        outcome = error
    except Exception as error:
        outcome = FastprojError(f"{type(error).__name__}: {error}")
    sender.send(outcome)


def _result(receiver: Connection) -> Any:
    try:
        outcome = receiver.recv()
    except EOFError:
        seconds = LIMITS[resource.RLIMIT_CPU]
        raise FastprojError(
            f"the template could not be rendered in {seconds} s, or crashed its renderer: simplify it"
        ) from None
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
