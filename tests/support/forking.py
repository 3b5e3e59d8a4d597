"""Stands in for `subprocess` where a program starts Python: forks have its imports already."""

import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any


class Popen(subprocess.Popen[Any]):
    """A fork that does what `python [-u] FILE` or `python [-u] -m MODULE` would."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        words = [word for word in args[1:] if word != "-u"]

        def run() -> None:
            os.closerange(3, 1024)  # one of them tells the parent that the program has started
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.clear()
            os.environ.update(env or {})
            os._exit(_status(words))

        super().__init__(
            args,
            env=env,
            preexec_fn=run,
            **options,
        )


def _status(words: list[str]) -> int:
    """Run a program, and return its exit status."""
    sys.argv = words[words[0] == "-m" :]
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
