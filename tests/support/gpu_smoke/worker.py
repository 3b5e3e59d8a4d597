"""The process that runs the checks: it reads their names from stdin, and answers with results.

It first describes the machine and lists the checks. What the checks print goes to a log file.
"""

import argparse
import gc
import importlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch
import torch._dynamo

from .check import Check, Lab, MissingHardwareError
from .results import Result

PATIENCE = 5
"""Factor of the time limits in a dry run: a CPU may be slow, or shared."""


def main() -> None:
    """Answer to the supervisor until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--projects", type=Path, required=True)
    parser.add_argument("--checks", default=f"{__package__}.checks")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    answers = _take_stdout()
    if not args.dry_run and not torch.cuda.is_available():
        _answer(answers, {"error": f"torch {torch.__version__} finds no CUDA device: use --dry-run on a CPU"})
        return
    device = torch.device("cpu") if args.dry_run else torch.device("cuda", 0)
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(device, args.projects, Path(folder))
        checks: list[Check] = importlib.import_module(args.checks).all_checks(lab)
        patience = PATIENCE if args.dry_run else 1
        listed = [[check.name, check.group, check.limit * patience] for check in checks]
        _answer(answers, {"about": describe(device), "checks": listed})
        by_name = {check.name: check for check in checks}
        for line in sys.stdin:
            result = run(by_name[line.strip()], lab)
            usable = result.status != "failed" or _usable(device)
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
    _reset(lab.device)
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


def _reset(device: torch.device) -> None:
    """Undo what the check before may have left."""
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(False)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _usable(device: torch.device) -> bool:
    """Whether the CUDA context has survived: after an illegal memory access, for example, it has not."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.ones(1, device=device).sum().item()
    except RuntimeError:
        return False
    return True


def describe(device: torch.device) -> dict[str, Any]:
    """Return the machine and the versions."""
    about: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__, "cpus": os.cpu_count()}
    if device.type == "cpu":
        return about | {"device": "CPU", "gpus": 0}
    found = torch.cuda.get_device_properties(device)
    about |= {"device": found.name, "gpus": torch.cuda.device_count(), "memory_gb": round(found.total_memory / 1e9, 1)}
    about |= {"capability": f"{found.major}.{found.minor}", "cuda": torch.version.cuda or torch.version.hip}
    cudnn: Any = torch.backends.cudnn
    return about | {"cudnn": cudnn.version()}


if __name__ == "__main__":
    main()
