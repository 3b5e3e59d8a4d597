"""Checks that pass, fail, hang, crash and lack hardware, for the tests of gpu_smoke."""

import os
import time

from gpu_smoke.check import Check, Figures, Lab, MissingHardwareError


class Machine:
    """A machine without torch, which takes seconds to import."""

    device, missing = None, ""

    def __init__(self, dry_run: bool) -> None:
        pass

    def reset(self) -> None:
        """Do nothing, as the checks leave nothing."""

    def usable(self) -> bool:
        """Whether the next check can run in this process."""
        return True

    def describe(self) -> Figures:
        """Return the machine."""
        return {"device": "none", "gpus": 0}


def passes(lab: Lab) -> Figures:
    """Pass."""
    return {"answer": 42}


def fails(lab: Lab) -> Figures:
    """Fail."""
    raise AssertionError("planted failure")


def exits(lab: Lab) -> Figures:
    """Fail as a command line does that refuses its options."""
    raise SystemExit("planted exit")


def hangs(lab: Lab) -> Figures:
    """Never end."""
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
        limit = 0.4 if check is hangs else 60
        found += [Check(check.__name__, "planted", check, limit), Check(f"after {check.__name__}", "planted", passes)]
    return found
