"""Run fastproj, and end it or let it fail right after a step of its own: STEP CALLS HOW [ARGUMENT ...].

STEP is a function that `fastproj.updating.apply` defines or imports, CALLS the number of the call, and HOW the name of
a signal or `fail`.
"""

import os
import signal
import sys
from typing import Any

from fastproj.__main__ import main
from fastproj.updating import apply, moving

STEP, CALLS, HOW = sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1)
function = getattr(apply, STEP)
calls = 0


def stopped(*arguments: Any, **options: Any) -> Any:
    """Call the step; at the call that was asked for, stop the program after it."""
    global calls
    result = function(*arguments, **options)
    calls += 1
    if calls == CALLS and HOW == "fail":
        raise OSError(28, "No space left on device", "/somewhere")
    if calls == CALLS:
        os.kill(os.getpid(), getattr(signal, HOW))
    return result


for module in (apply, moving):
    if hasattr(module, STEP):
        setattr(module, STEP, stopped)
main()
