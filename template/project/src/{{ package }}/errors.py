"""Errors as one line; and what starts and ends a process: ranks, signals, loader workers."""

import ctypes
import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

SAME_S = 2.0
"""A signal within these seconds of the first one is the same, which a launcher has passed on."""
JOIN = timedelta(seconds=90)
"""How long a rank waits for the others at its start."""
END = 0
"""No signal's number: ends the thread."""
PR_SET_PDEATHSIG = 1
"""Of Linux: the signal that a process gets when its parent ends."""
MORE_SHARED_MEMORY = "start a container with --shm-size=8g or --ipc=host, or use num_workers 0"
SLOW_LOADER = "look for a file or a mount that does not answer, or raise the loader's timeout"


class UserError(Exception):
    """What is wrong, where, and how to fix it."""


class Stopped(Exception):  # noqa: N818
    """The run was asked to stop, and saved a checkpoint.

    Exit status 75 is EX_TEMPFAIL of sysexits.h: try again.
    """


@contextmanager
def one_line() -> Iterator[None]:
    """Exit with one line on stderr: status 1 after an error that the user can fix, 75 if stopped.

    The variable ERROR_STATUS of the component `restart` replaces the 1, with which Python exits
    after any exception.
    """
    try:
        yield
    except (UserError, OSError) as error:
        # an error in a loader worker begins with its traceback
        last = (str(error).strip() or repr(error)).splitlines()[-1]
        if isinstance(error, OSError) and (error.errno, error.filename) == (errno.ENOSPC, None):
            last += f": the disk is full, or /dev/shm: {MORE_SHARED_MEMORY}"
            sys.unraisablehook = lambda _: None  # of a loader that was half built
        raise _exit(last.split("UserError: ")[-1]) from None
    except RuntimeError as error:
        if line := _of_other_ranks(error):
            time.sleep(5)  # a launcher names the rank that ends first, and then ends this one
            print(line, file=sys.stderr)
            raise SystemExit(1) from None
        if not str(error).startswith("DataLoader"):  # a worker has died, or takes too long
            raise
        ended = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        if "timed out" in ended:
            raise _exit(f"{ended}: {SLOW_LOADER}") from None
        raise _exit(f"{ended}; /dev/shm or memory may be full: {MORE_SHARED_MEMORY}") from None
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":
            print(stopped, file=sys.stderr, flush=True)
        raise SystemExit(75) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        kill_workers()


@contextmanager
def second_signal_ends() -> Iterator[None]:
    """End the process at a second Ctrl-C or SIGTERM, if Python handles the first one.

    The second one comes more than two seconds after the first: a launcher may repeat a signal.
    A thread sees it also while the main thread waits for a device, a file or other ranks.
    """
    if threading.current_thread() is not threading.main_thread():  # no other can handle signals
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old_writer = signal.set_wakeup_fd(writer)
    thread = threading.Thread(target=_end_at_second, args=(reader,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_writer)
        os.write(writer, bytes([END]))
        thread.join()
        os.close(writer)
        os.close(reader)


def _end_at_second(reader: int) -> None:
    """Read the numbers of signals from a pipe."""
    first: dict[int, float] = {}
    while (number := os.read(reader, 1)[0]) != END:
        now = time.monotonic()
        is_second = now - first.setdefault(number, now) > SAME_S
        if is_second and number in (signal.SIGINT, signal.SIGTERM):
            kill_workers()
            os._exit(128 + number)  # as if the signal had ended it


def _of_other_ranks(error: RuntimeError) -> str:
    """Return a line for an error of the connections between ranks, or nothing."""
    text = " ".join(str(error).partition("Exception raised from")[0].split())
    if "EADDRINUSE" in text:
        return ""
    if "gloo/transport" in text and "device.cc" not in text:  # which is this rank's interface
        return f"another rank is gone: look for its error ({text})"
    if "DistError" in [kind.__name__ for kind in type(error).__mro__]:  # of NCCL, or of the store
        return f"this rank or another one has failed ({text})"
    return ""


def report(line: str) -> int:
    """Print the line of an error; return the status with which the program has to end."""
    print(f"error: {line}", file=sys.stderr, flush=True)
    return int(os.environ.get("ERROR_STATUS", "1"))


def _exit(line: str) -> SystemExit:
    """Print the line of an error; return what ends the program."""
    return SystemExit(report(line))


def kill_workers() -> None:
    """Kill all loader workers: they ignore the signal with which Python ends them."""
    workers = multiprocessing.active_children()
    if workers and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else torch raises an error for each
    for worker in workers:
        worker.kill()


def launched_rank() -> tuple[int, int, int]:
    """Return the rank, the number of ranks, and the rank on this machine: 0, 1 and 0 if not set.

    Raises:
        UserError: variables of a launcher, such as torchrun, are missing or contradict each other.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if given.get("WORLD_SIZE", "1") == "1" and given.get("RANK", "0") == "0":
        return 0, 1, 0
    with suppress(KeyError, ValueError):
        rank, size, local_rank, _ = (int(given[name]) for name in names[:4])
        if 0 <= rank < size and given["MASTER_ADDR"]:
            return rank, size, local_rank
    found = ", ".join(f"{name}={value}" for name, value in given.items())
    raise UserError(
        f"{', '.join(names)} of a launcher do not fit ({found}): start with torchrun, or unset them"
    )


@contextmanager
def all_ranks(rank: int, size: int) -> Iterator[Any]:
    """Wait until each rank has come here; in the context, their store exists.

    A process group, which uses the same store, would wait for half an hour.

    Raises:
        UserError: a rank is missing after 90 seconds, as it may have ended.
    """
    distributed = import_module("torch.distributed")
    try:
        rendezvous = import_module("torch.distributed.rendezvous").rendezvous
        store, _, _ = next(rendezvous("env://", rank, size, timeout=JOIN))
        store.set(f"joined-{rank}", "")
        store.wait([f"joined-{number}" for number in range(size)], JOIN)
        store.set_timeout(distributed.constants.default_pg_timeout)
    except distributed.DistError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        late = f"not all of {size} ranks have joined ({reason})"
        raise UserError(f"{late}: look for an error of another rank") from None
    yield store


def end_with_launcher() -> None:
    """In a rank, get SIGUSR1 when the process that started it is gone, as after SIGKILL.

    That ends this process, or lets a training save a checkpoint: else it would keep its GPU.
    """
    if "LOCAL_RANK" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
