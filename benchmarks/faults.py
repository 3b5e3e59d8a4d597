"""Cause every fault at every moment in short runs, resume them, compare, and write docs/faults.md.

    python benchmarks/faults.py                       # the whole matrix; what faults.json has is not repeated
    python benchmarks/faults.py --framework lightning --only sigterm sigkill --strategy single
    python benchmarks/faults.py --soak 300 --ranks 2 --busy 2
    python benchmarks/faults.py --page                # only write the page

The runs and their checks are those of `make faults` in a rendered project. The results are in faults.json next to this
file, one for each combination of a fault, a moment, a rank, a strategy and a restart.
"""

import argparse
import atexit
import importlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from pages import BLOCK

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("faults.json")
PAGE = ROOT / "docs/faults.md"
STEP = ("fetch", "forward", "all-reduce", "step", "validation", "teardown")
SAVE = ("write", "before-fsync", "after-fsync", "before-rename", "after-rename")
MOMENTS = {
    **dict.fromkeys(("sigterm", "sigint", "sigusr1", "sigkill", "sigstop"), (*STEP, *SAVE)),
    **dict.fromkeys(("sigsegv", "abort", "exception", "gil-held"), (*STEP, *SAVE)),
    "straggler": ("fetch", "forward", "all-reduce", "step", "validation"),
    "worker-killed": ("fetch", "forward", "step", "validation"),
    **dict.fromkeys(("full-disk", "read-only-disk"), ("write", "before-fsync", "before-rename")),
    "slow-fsync": ("before-fsync",),
    **dict.fromkeys(("torn-file", "lost-rename"), ("after-rename",)),
    **dict.fromkeys(("nan", "out-of-memory"), ("forward",)),
    "port-in-use": ("start",),
}
"""The moments at which each fault makes sense."""
RESTARTED = {"single": 2, "ddp": 1, "fsdp": 1}
"""Other numbers of ranks, for a restart after `sigterm` or `sigkill`."""


def combinations() -> Iterator[tuple[str, str, str, str, int, bool]]:
    """Yield the fields of each case, as far as they make sense."""
    for fault, strategy in itertools.product(("sigkill", "sigstop", "gil-held", "abort", "exception"), RESTARTED):
        for moment, rank in (("all-reduce", "0"), ("validation", "0"), ("step", "1"), ("forward", "all")):
            suspended = fault == "sigstop" and (strategy == "single" or rank == "all")  # which is no hang
            if (strategy != "single" or rank == "0") and not suspended:
                yield fault, moment, rank, strategy, 0, True
    for strategy, (fault, moments) in itertools.product(RESTARTED, MOMENTS.items()):
        for moment, rank in itertools.product(moments, ("0",) if strategy == "single" else ("0", "1", "all")):
            renames, saves = "rename" in moment or fault in ("torn-file", "lost-rename"), moment in SAVE
            if rank != "0" and (renames or (saves and strategy == "ddp")):
                continue  # rank 0 alone writes and renames; under FSDP each rank writes its shards
            if rank == "all" and saves:
                continue  # one is the first, and then the others do not come so far
            if fault == "port-in-use" and (strategy == "single" or rank != "0"):
                continue
            yield fault, moment, rank, strategy, 0, False
            if fault in ("sigterm", "sigkill") and rank in ("0", "all") and not (rank == "0" and strategy != "single"):
                yield fault, moment, rank, strategy, RESTARTED[strategy], False


def open_project(framework: str) -> Any:
    """Render a project for this program, make it the current folder, and return its module `tools.faults`."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    new = [sys.executable, "-m", "fastproj", "new", "proj", "--model", "mlp", "--framework", framework, "--gpus", "0"]
    subprocess.run([*new, "--yes", "--no-git", "--output", str(folder)], check=True, stdout=subprocess.DEVNULL)
    os.chdir(folder / "proj")
    os.environ |= {"PYTHONPATH": str(folder / "proj/src"), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(folder / "proj/src"))
    return importlib.import_module("proj.tools.faults")


def read_results() -> dict[str, dict[str, Any]]:
    """Return what each case came to, by framework and case."""
    kept: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return kept


def write_results(kept: dict[str, dict[str, Any]]) -> None:
    """Write the results, one case per line."""
    parts = []
    for framework, found in sorted(kept.items()):
        lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
        parts.append(f"{json.dumps(framework)}: {{\n" + ",\n".join(lines) + "\n}")
    RESULTS.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main() -> None:
    """Run what is missing, and write the results and the page."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--framework", default="pytorch")
    options.add_argument("--only", nargs="*", default=list(MOMENTS), help="kinds of faults")
    options.add_argument("--strategy", nargs="*", default=list(RESTARTED))
    options.add_argument("--again", action="store_true", help="repeat what faults.json has")
    options.add_argument("--failed", action="store_true", help="repeat what had a problem")
    options.add_argument("--parallel", type=int, default=2)
    options.add_argument("--page", action="store_true", help="only write the page")
    args = options.parse_args()
    if args.page:
        write_page()
        return
    kept = read_results()
    found = kept.setdefault(args.framework, {})
    faults = open_project(args.framework)
    wanted = [faults.Case(*it) for it in combinations() if it[0] in args.only and it[3] in args.strategy]
    redo = [name for name in found if args.again or (args.failed and found[name]["problems"])]
    cases = [case for case in wanted if _name(case) not in found or _name(case) in redo]
    random.Random(0).shuffle(cases)  # noqa: S311  # so that a part is of all kinds
    print(f"{len(cases)} of {len(wanted)} cases", flush=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.parallel) as pool:
        trial = faults.Trial(Path(folder))
        running = {pool.submit(trial.run, case): case for case in cases}
        for number, future in enumerate(as_completed(running), start=1):
            case, result = running[future], future.result()
            found[_name(case)] = {
                "statuses": result.statuses,
                "lost": result.lost,
                "seconds": round(result.seconds, 1),
                "says": _told(result.said, folder),
                "problems": [problem.replace(folder, "runs") for problem in result.problems],
            }
            print(f"{number:4} {case!s:50} {result.statuses} {result.problems or ''}", flush=True)
            write_results({**read_results(), args.framework: found})  # which a soak may have changed
    write_page()


def write_page() -> None:
    """Write the tables into the page."""
    PAGE.write_text(page())


def page() -> str:
    """Return the page with the tables of faults.json."""
    block = "\n".join(["", *tables(read_results()), ""])
    return BLOCK.sub(lambda match: f"{match[1]}{block}{match[2]}", PAGE.read_text())


def tables(kept: dict[str, dict[str, Any]]) -> list[str]:
    """Return the tables of the page: what each fault leads to, the counts by moment and by restart, and the soak."""
    lines = []
    for framework in sorted(kept.keys() - {"soak"}):
        found = {tuple(name.split()): result for name, result in kept[framework].items()}
        good = sum(not result["problems"] for result in found.values())
        lines += [f"### {framework}: {good} of {len(found)} as expected", ""]
        total = sum(1 for _ in combinations())
        if len(found) < total:
            lines += [f"Of {total} combinations, {len(found)} were run so far, in random order.", ""]
        lines += ["| fault | single | ddp | fsdp | status | lost | says |", "|---|---|---|---|---|---|---|"]
        plain = {case: result for case, result in found.items() if case[-1] != "restarted"}
        for fault in MOMENTS:
            of_fault = {case: result for case, result in plain.items() if case[0] == fault}
            if of_fault:
                lines.append(_row(fault, of_fault))
        lines += ["", "| moment, or restart | single | ddp | fsdp |", "|---|---|---|---|"]
        for moment in ("start", *STEP, *SAVE):
            lines.append(
                f"| {moment} | {' | '.join(_counts({case: found[case] for case in found if case[1] == moment}))} |"
            )
        restarts = {"restarted by the launcher": ("restarted",), "resumed on other ranks": ("1", "2")}
        for name, ends in restarts.items():
            of_restart = {case: found[case] for case in found if len(case) > 4 and case[-1] in ends}
            lines.append(f"| {name} | {' | '.join(_counts(of_restart))} |")
        wrong = {" ".join(case): found[case]["problems"] for case in found if found[case]["problems"]}
        lines += ["", *(f"- `{name}`: {'; '.join(problems)[:300]}" for name, problems in wrong.items()), ""]
    return [*lines, *_soak(kept.get("soak", {}))]


def _row(fault: str, found: dict[tuple[str, ...], dict[str, Any]]) -> str:
    """Return the row of a fault: what most cases ended with on the rank that had it, and what one of them says."""
    statuses = Counter(
        result["statuses"][int(case[2]) if case[2] != "all" else 0]
        for case, result in found.items()
        if result["statuses"]
    )
    lost = max(result["lost"] for result in found.values())
    says = Counter(re.sub(r"\d+", "n", result["says"]) for result in found.values() if result["says"])
    pattern = says.most_common(1)[0][0] if says else ""
    line = next((result["says"] for result in found.values() if re.sub(r"\d+", "n", result["says"]) == pattern), "")
    said = f"`{line}`" if line else ""
    return f"| {fault} | {' | '.join(_counts(found))} | {_status(statuses)} | {lost} | {said.replace('|', '/')} |"


def _counts(found: dict[tuple[str, ...], dict[str, Any]]) -> list[str]:
    """Return how many cases of each strategy were as expected, of how many there are."""
    texts = []
    for strategy in RESTARTED:
        ours = [not result["problems"] for case, result in found.items() if case[3].rstrip(",") == strategy]
        texts.append(f"{sum(ours)} of {len(ours)}" if ours else "-")
    return texts


def _status(statuses: Counter[int | None]) -> str:
    """Return the most frequent statuses; a signal as a shell shows it."""
    shown = (128 - status if status is not None and status < 0 else status for status, _ in statuses.most_common(2))
    return ", ".join(map(str, shown))


def _soak(kept: dict[str, Any]) -> list[str]:
    lines = ["| framework | ranks | busy loops | interruptions | runs | killed | stopped | while saving | problems |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for name, it in sorted(kept.items()):
        framework, ranks, busy = name.split()
        cells = [framework, ranks, busy, it["interruptions"], it["runs"], it["killed"], it["stopped"], it["saving"]]
        lines.append(f"| {' | '.join(map(str, cells))} | {len(it['problems'])} |")
    return lines if kept else []


def _name(case: Any) -> str:
    return " ".join(str(case).split())


def _told(printed: str, folder: str) -> str:
    """Return the line of the output that names the cause."""
    lines = [
        line for line in printed.replace(folder, "runs").splitlines() if re.match(r"(error:|stopped|\w+Error)", line)
    ]
    return lines[0] if lines else ""


if __name__ == "__main__":
    main()
