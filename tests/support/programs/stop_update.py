"""Run fastproj, and end it or let it fail right after a step of its own: STEP CALLS HOW [ARGUMENT ...].

STEP is a function of `fastproj.updating.apply`, CALLS which of its calls it is, and HOW a signal's name or `fail`.
"""

import os
import signal
import sys
from typing import Any

from fastproj.__main__ import main
from fastproj.updating import apply

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


setattr(apply, STEP, stopped)
main()
