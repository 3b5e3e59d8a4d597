"""Find out where the time of training goes, by a short run of the real training command.

    python -m <package>.tools.profile --config configs/default.yaml
    python -m <package>.tools.profile --kind trace --config configs/default.yaml --train.micro_batch 64

Four kinds: `simple` (the phases of a step), `advanced` (Python functions, by cProfile), `trace` (operators, memory and
stacks, by torch.profiler) and `nvtx` (ranges for nsys). All other options are passed on to the training.
"""

import argparse
import json
import os
import pstats
import shlex
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

from ..console import shown
from ..errors import UserError
from ..phase_times import PHASES
from . import trial
from .atomic_file import atomic_write
from .diagnosis import Diagnosis, of_operators, of_phases

KINDS = ("simple", "advanced", "trace", "nvtx")
WARMUP, EVERY, LEAST = 10, 5, 5
"""Steps before those that are measured, in a row of metrics, and that are measured at least."""
TORCH_STEPS = 5
"""Steps that torch.profiler records, whose traces are large."""
SETTLE = 4
"""Steps between the last that is measured, and the first that is profiled."""
PER_STEP = ("communication", "optimizer")
"""Phases that a step has once; the others it has once per micro-batch."""


def profile(kind: str, steps: int, options: list[str], folder: Path, limit: float) -> dict[str, Any]:
    """Train for some steps, write files to a folder, and return what was found.

    Raises:
        UserError: the training does not get so far.
    """
    measured = -(-steps // EVERY) * EVERY
    profiled = measured if kind == "advanced" else TORCH_STEPS
    first = WARMUP + measured + SETTLE
    given = [f"--debug.profile={kind}", f"--debug.profile_start={first}", f"--debug.profile_steps={profiled}"]
    more = (-(-(SETTLE + profiled) // EVERY) + 1) * EVERY
    how: dict[str, Any] = {"steps": measured + more, "warmup": WARMUP, "every": EVERY, "limit": limit}
    busy = trial.busy()
    with tempfile.TemporaryDirectory() as temporary:
        with _progress(f"profiling {measured} steps in a process of their own"):
            found = trial.run([*options, *given], **how, keep=Path(temporary, "profile"))
        if found.outcome != "ok":
            way = "; raise --limit" * (found.outcome == "timeout")
            raise UserError(f"the training ended ({found.outcome}): {found.reason}{way}")
        _replace(folder, Path(temporary, "profile"))
    rows = [row for row in found.rows if row["step"] <= WARMUP + measured]
    row = {key: statistics.median(it.get(key, 0.0) for it in rows) for key in rows[0] if key != "split"}
    row["slowest_rank"] = statistics.mode(it.get("slowest_rank", 0) for it in rows)
    operators = folder / "operators.json"
    record = json.loads(operators.read_text(encoding="utf-8")) if operators.exists() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = len([*folder.glob("functions*.prof" if kind == "advanced" else "operators*.json")])
    diagnosis = of_phases(row, found.config, ranks, cores)
    if diagnosis is None and record is not None:
        diagnosis = of_operators(record, row, found.config)
    result = {"kind": kind, "samples_per_second": row["samples_per_second"], "memory_gb": found.memory_gb}
    result |= {"phases": _phases(row, measured, found.config, ranks)}
    result |= {"diagnosis": asdict(diagnosis) if diagnosis else None, "busy": busy, "config": found.config}
    result["operators"] = _by_name(record["operators"])[:40] if record else []
    result["functions"] = _functions(folder / "functions.prof") if kind == "advanced" else []
    result["folder"] = str(folder)
    with atomic_write(folder / "profile.json", "give another --run.dir") as file:
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if kind == "trace":
        from .memory_timeline import draw

        draw(folder / "trace.json", folder / "memory.png")
    return result


def _replace(folder: Path, new: Path) -> None:
    """Let a folder have the files of another one.

    Raises:
        UserError: one cannot be written; then nothing is left of the folder.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of a profile before
        shutil.copytree(new, folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # the run's folder, if it is empty
            folder.parent.rmdir()
        # One error about several files has a list of their names and reasons.
        why = error.args[0][0][2].partition(": ")[0] if isinstance(error, shutil.Error) else error.strerror or error
        raise UserError(f"cannot write {folder} ({why}): give another --run.dir") from error


def _phases(row: dict[str, float], steps: int, config: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Return the phases with their calls, mean milliseconds, total seconds, and shares."""
    train = config["train"]
    one_pass = train["micro_batch"] * ranks
    accumulate = train["accumulate"] if train["global_batch"] is None else train["global_batch"] // one_pass
    seconds = steps * one_pass * accumulate / row["samples_per_second"]
    shares = {name: row[name] for name in PHASES if name in row}
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    found = []
    for name, share in shares.items():
        calls = steps * (1 if name in PER_STEP or name == "other" else accumulate)
        its = {"calls": calls, "mean_ms": 1e3 * share * seconds / calls, "total_s": share * seconds, "share": share}
        found.append({"phase": name, **its})
    return found


def _by_name(operators: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the operators, whatever their shapes, with the longest first."""
    found: dict[str, dict[str, Any]] = {}
    for it in operators:
        sums = found.setdefault(it["name"], {"name": it["name"], "calls": 0, "us": 0.0})
        sums["calls"] += it["calls"]
        sums["us"] += it["us"]
    return sorted(found.values(), key=lambda it: -it["us"])


def _functions(file: Path) -> list[dict[str, Any]]:
    """Return the Python functions with the most time of their own."""
    stats: Any = pstats.Stats(str(file))
    found = []
    for (path, line, name), (_, calls, own, whole, _) in stats.stats.items():
        place = f"{'/'.join(Path(path).parts[-2:])}:{line}" if line else ""
        found.append({"name": name, "place": place, "calls": calls, "own_s": own, "total_s": whole})
    return sorted(found, key=lambda it: -it["own_s"])[:40]


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """Say on stderr what is done; in a terminal, with the seconds since."""
    began, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        while not ended.wait(1.0):
            print(f"\r{what}: {time.monotonic() - began:.0f} s ", end="", file=sys.stderr, flush=True)

    print(what, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    thread = threading.Thread(target=tell, daemon=True)
    if sys.stderr.isatty():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()
            print(f"\r{' ' * (len(what) + 12)}\r", end="", file=sys.stderr, flush=True)


def show(result: dict[str, Any]) -> None:
    """Print the tables, the diagnosis, and where the files are, in 80 columns."""
    print(f"{'phase':16}{'calls':>8}{'mean ms':>12}{'total s':>12}{'share':>9}")
    for it in result["phases"]:
        print(f"{it['phase']:16}{it['calls']:8}{it['mean_ms']:12.3f}{it['total_s']:12.3f}{it['share']:9.1%}")
    if result["functions"]:
        print(f"\n{'function':52}{'calls':>8}{'own s':>10}{'total s':>10}")
        for it in result["functions"][:15]:
            name = f"{it['name']} {it['place']}".strip()[:51]
            print(f"{name:52}{it['calls']:8}{it['own_s']:10.3f}{it['total_s']:10.3f}")
    if result["kind"] == "trace":
        print(f"\n{'operator':44}{'calls':>8}{'mean us':>14}{'total ms':>14}")
        for it in result["operators"][:15]:
            print(f"{it['name'][:43]:44}{it['calls']:8}{it['us'] / it['calls']:14.1f}{it['us'] / 1e3:14.3f}")
    found = result["diagnosis"]
    nothing = "not input- or communication-bound; --kind simple says what bounds the rest"
    print("", fill(str(Diagnosis(**found)) if found else nothing, 80, break_on_hyphens=False), sep="\n")
    if result["busy"]:
        print(fill(result["busy"], 80))
    print(f"files in {shown(Path(result['folder']))}")


def _nvtx(options: list[str], steps: int) -> str:
    """Return the command to record ranges with nsys, which has to start the training itself.

    Raises:
        UserError: there is no CUDA, or no nsys.
    """
    import torch  # here, as the other kinds need not wait for it

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != "cuda":
        raise UserError("--kind nvtx needs CUDA, which torch does not find here: use --kind trace")
    if shutil.which("nsys") is None:
        raise UserError("--kind nvtx needs nsys, which is not installed: install Nsight Systems, or use --kind trace")
    record = ["nsys", "profile", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--trace=cuda,nvtx"]
    train = [sys.executable, "-m", trial.PROGRAM, *options, "--debug.profile=nvtx", f"--debug.profile_steps={steps}"]
    return shlex.join([*record, *train, f"--train.steps={2 * WARMUP + steps}"])


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and profile."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.profile",
        description="Find out where the time of training goes, by a short run. Other options, such as --config, "
        "--train.micro_batch or --run.processes, are those of the training.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--kind", default="simple", help="simple (phases), advanced (functions), trace (operators), nvtx"
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="optimizer steps to measure, after the warm-up; default 20"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which to give up; default 600")
    parser.add_argument("--run.dir", dest="dir", type=Path, default=Path("runs"), help="where the files go")
    parser.add_argument("--run.name", dest="name", help="folder in there; default profile-<kind>-<time>")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with all that was found")
    args, options = parser.parse_known_args(argv)
    folder = args.dir / (args.name or f"profile-{args.kind}-{time.strftime('%Y%m%d-%H%M%S')}") / "profile"
    trial.end_on_signals()
    try:
        if args.kind not in KINDS:
            raise UserError(f"--kind is {args.kind}: use {', '.join(KINDS[:-1])} or {KINDS[-1]}")
        if args.steps < LEAST:
            raise UserError(f"--steps is {args.steps}: at least {LEAST} are needed for a row of metrics")
        if "RANK" in os.environ:
            raise UserError("a launcher has started this as one of several ranks: start it once, with --run.processes")
        if args.kind == "nvtx":
            print(f"start this, and open what it writes in Nsight Systems:\n{_nvtx(options, args.steps)}")
            return
        result = profile(args.kind, args.steps, options, folder, args.limit)
    except UserError as error:
        sys.exit(f"error: {error}")
    except SystemExit:
        print("interrupted", file=sys.stderr)
        raise
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
