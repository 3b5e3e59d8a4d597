"""The process that runs the checks: it reads their names from stdin, and answers with results.

It first describes the machine and lists the checks. What the checks print goes to a log file. When stdin ends, which it
also does when the supervisor is killed, this process ends, with all that it has started.
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from .check import Check, Lab, MissingHardwareError
from .results import Result

PATIENCE = 5
"""Factor of the time limits in a dry run: a CPU may be slow, or shared."""


def main() -> None:
    """Answer to the supervisor until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--projects", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the files of runs; it is emptied")
    parser.add_argument("--checks", default=f"{__package__}.checks", help="module with `all_checks` and `Machine`")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    answers, names = _take_stdout(), SimpleQueue[str]()
    threading.Thread(target=_read_names, args=(names,), daemon=True).start()
    module = importlib.import_module(args.checks)
    machine = module.Machine(args.dry_run)
    if machine.missing:
        _answer(answers, {"error": machine.missing})
        return
    lab = Lab(machine.device, args.projects.resolve(), args.folder.resolve())
    checks: list[Check] = module.all_checks(lab)
    patience = PATIENCE if args.dry_run else 1
    listed = [[check.name, check.group, check.limit * patience] for check in checks]
    _answer(answers, {"about": machine.describe(), "checks": listed})
    by_name = {check.name: check for check in checks}
    lab.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(lab.folder)  # where data of texts keep their tokens
    while True:
        check = by_name[names.get()]
        machine.reset()
        _empty(lab.folder)  # checkpoints can be large
        result = run(check, lab)
        usable = result.status != "failed" or machine.usable()
        _answer(answers, {"result": asdict(result), "usable": usable})


def _empty(folder: Path) -> None:
    """Remove what is in a folder, which stays: the processes that inductor compiles in have been started there."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _read_names(names: SimpleQueue[str]) -> None:
    """Pass on each name; in a thread, as a check may take long."""
    with os.fdopen(os.dup(0), encoding="utf-8") as stream:  # a forked process closes sys.stdin, and would wait for it
        for line in stream:
            names.put(line.strip())
    os.killpg(os.getpid(), signal.SIGKILL)


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
    lab.figures.clear()
    try:
        lab.figures.update(check.run(lab))
        status, message = "ok", ""
    except MissingHardwareError as error:
        status, message = "skipped", str(error)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        text = " ".join(str(error).split()) or "no message"
        status, message = "failed", f"{type(error).__name__}: {text[:500]}"
    seconds = round(time.perf_counter() - started, 3)
    return Result(check.name, check.group, status, seconds, dict(lab.figures), message)  # type: ignore[arg-type]  # a Literal


if __name__ == "__main__":
    main()
