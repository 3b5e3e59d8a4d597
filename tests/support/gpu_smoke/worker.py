"""The process that runs the checks: it reads their names from stdin, and answers with results.

It first describes the machine and lists the checks. What the checks print goes to a log file.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from .check import Check, Lab, MissingHardwareError
from .results import Result

PATIENCE = 5
"""Factor of the time limits in a dry run: a CPU may be slow, or shared."""


def main() -> None:
    """Answer to the supervisor until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--projects", type=Path, required=True)
    parser.add_argument("--checks", default=f"{__package__}.checks", help="module with `all_checks` and `Machine`")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    answers = _take_stdout()
    module = importlib.import_module(args.checks)
    machine = module.Machine(args.dry_run)
    if machine.missing:
        _answer(answers, {"error": machine.missing})
        return
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(machine.device, args.projects, Path(folder))
        checks: list[Check] = module.all_checks(lab)
        patience = PATIENCE if args.dry_run else 1
        listed = [[check.name, check.group, check.limit * patience] for check in checks]
        _answer(answers, {"about": machine.describe(), "checks": listed})
        by_name = {check.name: check for check in checks}
        for line in sys.stdin:
            machine.reset()
            result = run(by_name[line.strip()], lab)
            usable = result.status != "failed" or machine.usable()
            _answer(answers, {"result": asdict(result), "usable": usable})


def _take_stdout() -> TextIO:
    """Return a stream for answers; from here on, what anything prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _answer(stream: TextIO, row: dict[str, Any]) -> None:
    stream.write(json.dumps(row) + "\n")
    stream.flush()


def run(check: Check, lab: Lab) -> Result:
    """Run one check, whatever it raises."""
    print(f"--- {check.name}", file=sys.stderr, flush=True)
    started = time.perf_counter()
    try:
        figures, status, message = check.run(lab), "ok", ""
    except MissingHardwareError as error:
        figures, status, message = {}, "skipped", str(error)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        text = " ".join(str(error).split()) or "no message"
        figures, status, message = {}, "failed", f"{type(error).__name__}: {text[:500]}"
    seconds = round(time.perf_counter() - started, 3)
    return Result(check.name, check.group, status, seconds, figures, message)  # type: ignore[arg-type]  # a Literal


if __name__ == "__main__":
    main()
