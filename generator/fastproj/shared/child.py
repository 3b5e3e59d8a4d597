"""Run a function in a copy of this process with limited resources: templates are rendered there, as none is trusted."""

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from .errors import FastprojError
from .scratch import SIGNALS

# A template takes a second, a few MB and files of some KB.
LIMITS = {resource.RLIMIT_CPU: 30, resource.RLIMIT_AS: 2 << 30, resource.RLIMIT_FSIZE: 1 << 28}
_FORK = get_context("fork")


def in_child(task: Callable[[], Any]) -> Any:
    """Return the result of a task, or raise its error. Other threads must have ended, as only this one is copied."""
    receiver, sender = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_run, args=(task, sender), daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until there is someone who ends the child
    child.start()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sender.close()
        outcome = receiver.recv()
    except EOFError:
        reason = f"could not be rendered in {LIMITS[resource.RLIMIT_CPU]} s, or crashed its renderer"
        raise FastprojError(f"the template {reason}: simplify it") from None
    finally:
        child.kill()
        child.join()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _run(task: Callable[[], Any], sender: Connection) -> None:
    """Do the task with limited resources, and send its result or its error."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # a library may print a warning, or ask
        os.dup2(null, standard)
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
