"""A process that aborts the one that started it, if no thread of that can run Python for too long.

    python guard.py PID SECONDS MESSAGE

The other process writes to this one's standard input again and again. If it writes nothing for so many seconds in
which it is not stopped, the message is printed and it is aborted. This ends with it, or when the input is closed.
"""

import os
import select
import signal
import sys
import time

POLL = 1.0
"""Seconds between looks at the other process, at most."""


def status_of(pid: int) -> str:
    """Return the letter that Linux has for the state of a process; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    except OSError:
        return "" if os.path.isdir("/proc/self") else "?"


def main(pid: int, limit: float, message: str) -> None:
    """Watch the process until it ends, or abort it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # which the group of the process may get
    poll = min(POLL, limit / 20)
    silent = 0.0  # counted in polls, which a computer that sleeps does not make
    while silent < limit:
        if select.select([0], [], [], poll)[0]:
            silent = 0.0
            if not os.read(0, 4096):
                return
        elif os.getppid() != pid:  # a loader worker may still hold the pipe
            return
        elif status_of(pid) not in ("T", "t"):
            silent += poll
    print(message, file=sys.stderr, flush=True)
    os.kill(pid, signal.SIGABRT)
    for _ in range(50):
        time.sleep(0.1)
        if os.getppid() != pid:
            return
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
