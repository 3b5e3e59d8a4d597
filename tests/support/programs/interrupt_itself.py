"""Run `fastproj` with a command that sends the signal NUMBER to itself in an `import`."""

import os
import signal
import sys
import time
import types
import weakref
from typing import Any

from fastproj.__main__ import main

number = int(sys.argv[1])


def interrupt_import() -> None:
    """Receive the signal in a frame of Python's import system, in which Python drops exceptions."""
    code = compile("kill(process, number)", "<frozen importlib._bootstrap>", "exec")
    names = {"kill": os.kill, "process": os.getpid(), "number": number}
    unreferenced = type("Lock", (), {})()
    _reference = weakref.ref(unreferenced, lambda _: exec(code, names))  # noqa: S102
    del unreferenced


def app(*_: Any, **__: Any) -> None:
    """Stand for the command line."""
    interrupt_import()
    if signal.getsignal(number) != signal.SIG_IGN:
        time.sleep(300)
    print("not interrupted")


sys.modules["fastproj.cli"] = types.ModuleType("fastproj.cli")
sys.modules["fastproj.cli"].app = app  # type: ignore[attr-defined]
main()
