"""A pseudo-terminal for what a program prints, and the lines that a person sees there."""

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

COLUMNS = 80


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Make stdout and stderr a terminal; afterwards the list has the lines of its screen."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    printed: list[bytes] = []

    def read() -> None:
        try:
            while received := os.read(outer, 4096):
                printed.append(received)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    lines: list[str] = []
    try:
        with open(inner, "w", encoding="utf-8") as stream, redirect_stdout(stream), redirect_stderr(stream):
            yield lines
    finally:
        reader.join()
        os.close(outer)
        lines += screen(b"".join(printed).decode())


def screen(printed: str) -> list[str]:
    """Return the lines after carriage returns, line feeds, the erasing of a line's rest, and wrapping."""
    lines, column = [""], 0
    for character in printed.replace("\x1b[K", "\0"):
        if character == "\n":
            lines.append("")
        elif character == "\r":
            column = 0
        elif character == "\0":
            lines[-1] = lines[-1][:column]
        else:
            if column == COLUMNS:
                lines.append("")
                column = 0
            lines[-1] = f"{lines[-1]:{column}}"[:column] + character + lines[-1][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]
