"""The signals that end the program: SIGINT, SIGTERM and SIGHUP."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_by_exception() -> None:
    """Let each end the program by an exception, so that temporary files are removed."""
    for number in _NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` does
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    """Raise the exception; while Python imports a module, ask for it again 10 ms later.

    Between two lines of importlib, it could keep a lock, for which another thread waits for ever.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            return
        frame = frame.f_back
    raise SystemExit(128 + number)


@contextmanager
def delayed() -> Iterator[None]:
    """Let them wait for the end of the block, so that no process is started and forgotten."""
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _NUMBERS}
    for number, handler in handlers.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for waiting in received:
            signal.raise_signal(waiting)
