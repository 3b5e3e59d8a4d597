"""Train, and kill this process at a file operation of the run: NUMBER PACKAGE OPTION..."""

import os
import runpy
import signal
import sys
from typing import Any

COUNTED = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


def main() -> None:
    """Count the operations that Python's audit hooks report."""
    number, package, *options = sys.argv[1:]
    folder = next(option.partition("=")[2] for option in options if option.startswith("--run.dir="))
    seen = 0

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal seen
        if (
            event in COUNTED
            and isinstance(values[0], str | os.PathLike)
            and os.fspath(values[0]).startswith(folder)
        ):
            seen += 1
            if seen == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    sys.argv = [package, *options]
    runpy.run_module(f"{package}.train", run_name="__main__", alter_sys=True)
    print(seen)


if __name__ == "__main__":
    main()
