"""Report on runs: a page with curves, phases, events, options and environment, report.html, and the curves as a PNG.

    python -m <package>.tools.report runs/first
    python -m <package>.tools.report runs/first runs/second --output compared.html
    python -m <package>.tools.report runs/first --push mlflow

The page is one file that loads nothing. `--push` sends the rows to a tracker, as `log.tracker` does while a run trains;
what it has is not sent again.
"""

import argparse
import io
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from .. import trackers
from ..errors import UserError, short_warnings
from ..phase_times import PHASES
from .atomic_file import atomic_write
from .report_chart import thin
from .report_page import TRAIN_ONLY, as_json, build_page
from .run_record import RunRecord, read_run, unique_names

MOST_POINTS = 4000
"""Points of a curve that are drawn."""
LARGEST = 1e150
"""Value from which matplotlib fails."""
LARGE, MANY = 5_000_000, 15
"""Bytes of metrics that take more than two seconds, and metrics whose plot does."""


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Read runs; of several, those that have no row of metrics are left out, with a warning.

    Raises:
        UserError: none is left.
    """
    runs, problems = [], []
    for folder in dict.fromkeys(folders):
        try:
            runs.append(read_run(folder))
        except UserError as error:
            problems.append(error)
    _leave_out(problems, bool(runs))
    unique_names(runs)
    return runs


def write_page(runs: Sequence[RunRecord], target: Path) -> None:
    """Write the page.

    Raises:
        UserError: it cannot be written.
    """
    with atomic_write(target, "give another --output") as file:
        file.write_text(build_page(runs), encoding="utf-8", errors="replace")


def draw(runs: Sequence[RunRecord], target: Path) -> None:
    """Plot each metric of both splits over the optimizer steps, followed by those of training steps only.

    Raises:
        UserError: the plot cannot be written.
    """
    from matplotlib.figure import Figure  # imported here because it takes a second

    names = [name for name in dict.fromkeys(name for run in runs for name in run.metrics()) if name not in PHASES]
    names.sort(key=lambda name: (name in TRAIN_ONLY, name != "loss"))
    if len(names) > MANY:
        print(f"drawing {len(names)} metrics", file=sys.stderr, flush=True)
    columns = max(1, min(3, len(names)))
    rows_of_axes = max(1, -(-len(names) // columns))
    figure = Figure(figsize=(4.5 * columns, 3.2 * rows_of_axes), layout="constrained")
    figure.suptitle(runs[0].name if len(runs) == 1 else f"{len(runs)} runs", parse_math=False)
    for number, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows_of_axes, columns, number)
        for color, run in enumerate(runs):
            for split, style in (("train", "-"), ("val", "o--")):
                points = [
                    (step, value if abs(value) < LARGEST else math.nan)
                    for step, value in thin(run.series(split, name), MOST_POINTS)
                ]
                label = split if len(runs) == 1 else f"{split} {run.name}"  # matplotlib leaves out those like _a
                if points:
                    options: dict[str, Any] = {"color": f"C{color if len(runs) > 1 else int(split == 'val')}"}
                    axes.plot(*zip(*points, strict=True), style, markersize=3, linewidth=1.2, label=label, **options)
        axes.set_title(name.replace("_", " "), fontsize=10, parse_math=False)
        axes.set_xlabel("optimizer step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        if axes.lines and (name not in TRAIN_ONLY or len(runs) > 1):
            for text in axes.legend(fontsize=8).get_texts():
                text.set_parse_math(False)
    with atomic_write(target, "give another --output") as file:
        figure.savefig(file, dpi=120)


def push(name: str, run: RunRecord) -> int:
    """Send the rows of a run to a tracker, and return how many it has.

    Raises:
        UserError: its package is not installed, the run has not ended, or the tracker fails.
    """
    from ..trackers import follow

    told = time.monotonic()

    def counted(rows: Iterator[follow.Row]) -> Iterator[follow.Row]:
        nonlocal told
        for number, row in enumerate(rows, start=1):
            if time.monotonic() - told > 2:
                told = time.monotonic()
                end = "\r" if sys.stderr.isatty() else "\n"
                print(f"{run.name}: {number} of {len(run.rows)} rows", end=end, file=sys.stderr, flush=True)
            yield row

    try:
        with redirect_stdout(sys.stderr):  # which trackers print on
            return follow.push(name, run.folder, counted)
    except BlockingIOError as error:
        raise UserError(f"{run.folder} is still being sent to {name}: try again when the run has ended") from error
    except Exception as error:  # of the tracker
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        way = "repair that, and push again, which sends what is missing"
        raise UserError(f"{name} has failed to take {run.folder} ({why}): {way}") from error


def push_all(name: str, runs: Sequence[RunRecord]) -> tuple[dict[str, int], dict[str, str]]:
    """Send the rows of runs; return how many each has, and why others have failed, which are left out with a warning.

    Raises:
        UserError: all fail.
    """
    counts, problems = dict[str, int](), dict[str, UserError]()
    for run in runs:
        try:
            counts[str(run.folder)] = push(name, run)
        except UserError as error:
            problems[str(run.folder)] = error
    _leave_out([*problems.values()], bool(counts))
    return counts, {run: str(problem) for run, problem in problems.items()}


def _leave_out(problems: Sequence[UserError], others: bool) -> None:
    """Warn about runs that are left out; raise the first problem if there are no others."""
    if problems and not others:
        raise problems[0]
    for problem in problems:
        warnings.warn(f"{problem}; it is left out", stacklevel=3)


def summary(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return what `--json` prints about runs."""
    return [
        {
            "run": str(run.folder),
            "rows": len(run.rows),
            "steps": run.rows[-1]["step"],
            "seconds": run.seconds(),
            "best": dict(zip(("metric", "step", "value"), run.best() or (), strict=False)) or None,
            "last": {
                split: next((row for row in reversed(run.rows) if row["split"] == split), None)
                for split in ("train", "val")
            },
            "events": [{"step": step, "what": what} for step, what in run.events],
        }
        for run in runs
    ]


def report(args: argparse.Namespace) -> dict[str, Any]:
    """Do what the command line says, and return what was done.

    Raises:
        UserError: there is no run, or a file cannot be written.
    """
    if args.output is not None and args.output.suffix != ".html":
        raise UserError(f"--output {args.output}: its name must end with .html")
    if args.push:
        trackers.check(args.push, "--push ")
    files = [folder / "metrics.jsonl" for folder in args.runs]
    size = sum(os.path.getsize(file) for file in files if os.path.isfile(file))  # also where nothing can be read
    if size > LARGE:
        doing = "reading" if args.push else "reading and drawing"
        print(f"{doing} {size / 1e6:.0f} MB of metrics", file=sys.stderr, flush=True)
    runs = read_runs(args.runs)
    if args.push:
        rows, failed = push_all(args.push, runs)
        return {"tracker": args.push, "rows": rows, "failed": failed}
    place = runs[0].folder if len(runs) == 1 else runs[0].folder.absolute().parent
    page = args.output or place / "report.html"
    plot = page.with_suffix(".png")
    write_page(runs, page)
    draw(runs, plot)
    return {"page": str(page), "plot": str(plot), "runs": summary(runs)}


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and report."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.report",
        description="Write a page about runs, report.html, with their curves, phases, events, options and environment; "
        "and the curves as report.png. A run may still train.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run; several are compared")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--output", type=Path, metavar="FILE.html", help="default: report.html in the run's folder")
    instead.add_argument("--push", choices=trackers.NAMES, help="send the rows to this tracker instead")
    parser.add_argument("--json", action="store_true", help="print what was done, and found, as JSON")
    args = parser.parse_args(argv)
    short_warnings()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for the names of folders
    try:
        done = report(args)
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    if args.json:
        print(as_json(done))
    elif args.push:
        for run, rows in done["rows"].items():
            print(f"{args.push} has the {rows} rows of {run}" if rows != 1 else f"{args.push} has the 1 row of {run}")
    else:
        print(f"page in {done['page']}\nplot in {done['plot']}")
    if done.get("failed"):
        sys.exit(1)


if __name__ == "__main__":
    main()
