"""Run a function in a copy of this process with limited resources: templates are rendered there, as none is trusted.

Two at once also save a quarter of the time of an update.
"""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from .errors import FastprojError, UsageError
from .scratch import SIGNALS

# A template takes a second, a few MB and files of some KB.
CPU_S, MEMORY_BYTES, FILE_BYTES = 30, 1 << 30, 1 << 28
_TERMINATION_S = 2.0


@contextmanager
def in_child(task: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Start a task, and yield a function that waits for its result (JSON) or raises its error.

    Other threads must have ended, as only this one is copied.
    """
    reading, writing = os.pipe()
    # Python drops an exception that a signal raises in what its modules do around a fork.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    child = os.fork()
    if child == 0:
        _run(task, writing, mask)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writing)
        with os.fdopen(reading, "rb") as output:
            yield lambda: _result(output.read())
    finally:
        _end(child)


def _run(task: Callable[[], Any], writing: int, mask: Collection[int]) -> NoReturn:
    """Do the task, send its result, and exit without the clean-up that the parent does."""
    try:
        os.dup2(writing, 3)
        os.closerange(4, 4096)  # such as the parent's locks, which must not outlive it
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        _limit(resource.RLIMIT_CPU, CPU_S)
        _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
        _limit(resource.RLIMIT_AS, _size() + MEMORY_BYTES)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            output = {"result": task()}
        except FastprojError as error:
            output = {"usage" if isinstance(error, UsageError) else "error": str(error)}
        except MemoryError:
            output = {"error": f"the template needs more than {MEMORY_BYTES >> 30} GiB of memory: simplify it"}
        except OSError as error:
            output = {"os": [error.errno, error.strerror, error.filename]}
        except KeyboardInterrupt:
            output = {"interrupted": True}
        except Exception as error:
            output = {"error": f"{type(error).__name__}: {error}"}
        content = json.dumps(output).encode()
        while content:
            content = content[os.write(3, content) :]
    finally:
        os._exit(0)


def _limit(kind: int, most: int) -> None:
    """Lower a limit; one that is lower already stays."""
    soft, hard = resource.getrlimit(kind)
    limits = [most, *(it for it in (soft, hard) if it != resource.RLIM_INFINITY)]
    with suppress(ValueError, OSError):  # macOS does not know each
        resource.setrlimit(kind, (min(limits), hard))


def _size() -> int:
    """Return the size of this process's address space; on systems without /proc, a typical one."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30


def _result(output: bytes) -> Any:
    if not output:
        raise FastprojError(f"the template could not be rendered in {CPU_S} s, or crashed its renderer: simplify it")
    found = json.loads(output)
    if "interrupted" in found:
        raise KeyboardInterrupt
    if "os" in found:
        raise OSError(*found["os"])
    if "usage" in found:
        raise UsageError(found["usage"])
    if "error" in found:
        raise FastprojError(found["error"])
    return found["result"]


def _end(child: int) -> None:
    """End the child; first politely, as a prompt has to restore the terminal."""
    deadline = time.monotonic() + _TERMINATION_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.005)
