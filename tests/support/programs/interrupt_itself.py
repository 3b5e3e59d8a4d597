"""Run `fastproj` with a command that sends a signal to itself: NUMBER, in an `import` or in Python's `tempfile`."""

import os
import sys
import tempfile
import time
import types
import weakref
from typing import Any

from fastproj.__main__ import main
from fastproj.shared.scratch import temporary_folder

number, place = int(sys.argv[1]), sys.argv[2]


def interrupt_import() -> None:
    """Receive the signal in a frame of Python's import system, in which Python drops exceptions."""
    code = compile("kill(process, number)", "<frozen importlib._bootstrap>", "exec")
    names = {"kill": os.kill, "process": os.getpid(), "number": number}
    unreferenced = type("Lock", (), {})()
    _reference = weakref.ref(unreferenced, lambda _: exec(code, names))  # noqa: S102
    del unreferenced


def interrupt_tempfile() -> None:
    """Receive the signal when Python has created its test file."""
    opened = os.open

    def interrupted(*arguments: Any) -> int:
        descriptor = opened(*arguments)
        os.kill(os.getpid(), number)
        return descriptor

    tempfile._os.open = interrupted  # type: ignore[attr-defined]
    temporary_folder()


def app(*_: Any, **__: Any) -> None:
    """Stand for the command line."""
    interrupt_import() if place == "import" else interrupt_tempfile()
    time.sleep(1)
    print("not interrupted")


sys.modules["fastproj.cli"] = types.ModuleType("fastproj.cli")
sys.modules["fastproj.cli"].app = app  # type: ignore[attr-defined]
main()
