"""Checks that pass, fail, hang, crash and lack hardware, for the tests of gpu_smoke."""

import os
import subprocess
import sys
import time
from pathlib import Path

from gpu_smoke.check import Check, Figures, Lab, MissingHardwareError

LIMIT = float(os.environ.get("PLANTED_LIMIT", "0.4"))
"""Seconds after which the check that hangs has failed, on a GPU."""


class Machine:
    """A machine without torch, which takes seconds to import."""

    device, missing = None, ""

    def __init__(self, dry_run: bool) -> None:
        if "PLANTED_START" in os.environ:
            start_child()
            time.sleep(600)

    def reset(self) -> None:
        """Do nothing, as the checks leave nothing."""

    def usable(self) -> bool:
        """Whether the next check can run in this process."""
        return True

    def describe(self) -> Figures:
        """Return the machine."""
        return {"device": "none", "gpus": 0}


def passes(lab: Lab) -> Figures:
    """Pass, and leave a file in the current folder."""
    Path("left").touch()
    return {"answer": 42}


def start_child() -> None:
    """Start a process that does not end, and print its id and that of this one."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("processes", os.getpid(), child.pid, file=sys.stderr, flush=True)


def fails(lab: Lab) -> Figures:
    """Fail, with a figure that was known before."""
    lab.figures["before"] = 1
    raise AssertionError("planted failure")


def exits(lab: Lab) -> Figures:
    """Fail as a command line does that refuses its options."""
    raise SystemExit("planted exit")


def hangs(lab: Lab) -> Figures:
    """Never end, with a process that does not either."""
    start_child()
    time.sleep(600)
    return {}


def crashes(lab: Lab) -> Figures:
    """Kill the process."""
    os.abort()


def lacks_hardware(lab: Lab) -> Figures:
    """Need more than this machine has."""
    raise MissingHardwareError("needs two GPUs")


def all_checks(lab: Lab) -> list[Check]:
    """Return them, with one that passes after each."""
    planted = [hangs, fails, exits, crashes, lacks_hardware]
    found = [Check("first", "planted", passes)]
    for check in planted:
        limit = LIMIT if check is hangs else 60
        found += [Check(check.__name__, "planted", check, limit), Check(f"after {check.__name__}", "planted", passes)]
    return found
