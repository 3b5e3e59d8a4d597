"""Run `fastproj` with a command that sends the signal NUMBER to itself."""

import signal
import sys
import types
from typing import Any

from fastproj.__main__ import main

number = int(sys.argv[1])


def app(*_: Any, **__: Any) -> None:
    """Stand for the command line."""
    signal.raise_signal(number)
    print("not interrupted")


sys.modules["fastproj.cli"] = types.ModuleType("fastproj.cli")
sys.modules["fastproj.cli"].app = app  # type: ignore[attr-defined]
main()
