"""Run a command of which nothing goes on when a signal ends this program, so that its folders can be removed."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from .scratch import SIGNALS

_END_S = 5.0
"""How long what a command has started may go on after it."""


def run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], data: bytes, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a command, as `subprocess.run` does, which two things would outlive when a signal raises an exception.

    A process whose start is interrupted is not known to anyone; so a signal waits until it has started. And what a
    command has started, such as git's `index-pack`, is not killed with it; so the end of its output is waited for.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it takes longer than `timeout_s`.
    """
    arrived: list[int] = []
    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, lambda it, _: arrived.append(it))
        for number in SIGNALS
        if current_thread() is main_thread() and callable(signal.getsignal(number))
    }
    process = None
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        _restore(before, arrived)
        stdout, stderr = process.communicate(data, timeout_s)
    except BaseException:
        if process is not None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_END_S)
        raise
    finally:
        _restore(before, arrived)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _restore(before: dict[signal.Signals, Any], arrived: list[int]) -> None:
    """Act on signals as before, also on those that have arrived."""
    while before:
        number, handler = before.popitem()
        signal.signal(number, handler)
    while arrived:
        signal.raise_signal(arrived.pop())
