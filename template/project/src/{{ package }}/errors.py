"""Errors that end a program with one line instead of a traceback."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess

MORE_SHARED_MEMORY = "start a container with --shm-size=8g or --ipc=host, or use num_workers 0"


class UserError(Exception):
    """What is wrong, where, and how to fix it."""


class Stopped(Exception):  # noqa: N818
    """The run was asked to stop, and saved a checkpoint.

    Exit status 75 is EX_TEMPFAIL of sysexits.h: try again.
    """


@contextmanager
def one_line() -> Iterator[None]:
    """Exit with one line on stderr: status 1 after an error that the user can fix, 75 if stopped.

    The variable ERROR_STATUS replaces the 1, with which Python exits after any exception.
    """
    try:
        yield
    except (UserError, OSError) as error:
        # an error in a loader worker begins with its traceback
        last = (str(error).strip() or repr(error)).splitlines()[-1]
        raise _exit(last.split("UserError: ")[-1]) from None
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        ended = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        raise _exit(f"{ended}; /dev/shm or memory may be full: {MORE_SHARED_MEMORY}") from None
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":
            print(stopped, file=sys.stderr, flush=True)
        raise SystemExit(75) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        kill_workers()


def _exit(line: str) -> SystemExit:
    """Print the line of an error; return what ends the program."""
    print(f"error: {line}", file=sys.stderr, flush=True)
    return SystemExit(int(os.environ.get("ERROR_STATUS", "1")))


def kill_workers(workers: Iterable[BaseProcess] | None = None) -> None:
    """Kill loader workers, or all that are left: they ignore the signal with which Python ends."""
    alive = multiprocessing.active_children()
    if alive and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else torch raises an error for each
    for worker in alive if workers is None else workers:
        worker.kill()


def launched_rank() -> tuple[int, int, int]:
    """Return the rank, the number of ranks, and the rank on this machine: 0, 1 and 0 if not set.

    Raises:
        UserError: variables of a launcher, such as torchrun, are missing or contradict each other.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if given.keys() <= {"MASTER_ADDR", "MASTER_PORT"}:
        return 0, 1, 0
    if given.get("WORLD_SIZE") == "1":  # some schedulers set no more for one process
        given.setdefault("LOCAL_RANK", "0")
    with suppress(KeyError, ValueError):
        rank, size, local = (int(given[name]) for name in names[:3])
        can_join = size == 1 or (given["MASTER_ADDR"] and int(given["MASTER_PORT"]) < 65536)
        if 0 <= rank < size and 0 <= local < int(given.get(names[3], size)) and can_join:
            return rank, size, local
    found = ", ".join(f"{name}={value}" for name, value in given.items())
    raise UserError(
        f"{', '.join(names)} of a launcher do not fit ({found}): start with torchrun, or unset them"
    )


def end_with_launcher() -> None:
    """In a rank, end this process when the one that started it is gone, as after SIGKILL.

    Else a rank could wait for the others for half an hour, and keep its GPU.
    """
    if "LOCAL_RANK" in os.environ:  # set by torchrun, `accelerate launch`, Lightning and others
        threading.Thread(
            target=_end_after,
            args=(os.getppid(),),
            daemon=True,
        ).start()


def _end_after(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(5)
    with suppress(OSError):  # nobody may read stderr any more
        print(
            "error: the launcher of this rank is gone",
            file=sys.stderr,
            flush=True,
        )
    # Both ask a training to save a checkpoint; but a second SIGTERM would end it at once.
    is_handled = callable(signal.getsignal(signal.SIGUSR1))
    os.kill(os.getpid(), signal.SIGUSR1 if is_handled else signal.SIGTERM)
    time.sleep(30)
    os._exit(1)  # it hangs
