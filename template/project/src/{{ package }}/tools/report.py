"""Plot the metrics of a run, from its metrics.jsonl, in report.png.

python -m <package>.tools.report runs/first
"""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from ..errors import UserError, short_warnings
from .atomic_file import atomic_write

TRAIN_ONLY = {"lr", "grad_norm", "samples_per_second", "tflops", "mfu", "skipped_steps"}
NOT_PLOTTED = {"split", "step", "seconds"}


def read(run: Path) -> list[dict[str, Any]]:
    """Return the rows of the log; warn about damaged ones, which are left out.

    Raises:
        UserError: there is no log, or no row in it.
    """
    file = run / "metrics.jsonl"
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): give the folder of a run") from error
    rows = [row for line in lines if (row := _row(line))]
    if len(rows) < len(lines):
        warnings.warn(f"{len(lines) - len(rows)} lines of {file} are damaged, and left out", stacklevel=2)
    if not rows:
        raise UserError(f"{file} has no row: train for at least one log interval first")
    return rows


def _row(line: str) -> dict[str, Any] | None:
    """Return the split of a row and its numbers; None if it is damaged."""
    try:
        found = dict(json.loads(line))
    except (ValueError, TypeError):
        return None
    row = {key: value for key, value in found.items() if key == "split" or type(value) in (int, float)}
    return row if {"split", "step"} <= row.keys() else None


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """Plot each metric of both splits over the optimizer steps, followed by those of training steps only.

    Raises:
        UserError: the plot cannot be written.
    """
    from matplotlib.figure import Figure  # imported here because it takes a second

    names = list(dict.fromkeys(key for row in rows for key in row if key not in NOT_PLOTTED))
    names.sort(key=lambda name: (name in TRAIN_ONLY, name != "loss"))
    columns = min(3, len(names))
    rows_of_axes = -(-len(names) // columns)
    figure = Figure(figsize=(4.5 * columns, 3.2 * rows_of_axes), layout="constrained")
    figure.suptitle(target.parent.name)
    for number, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows_of_axes, columns, number)
        for split, style in (("train", "-"), ("val", "o-")):
            points = [(row["step"], row[name]) for row in rows if row["split"] == split and name in row]
            if points:
                axes.plot(*zip(*points, strict=True), style, markersize=3, linewidth=1.2, label=split)
        axes.set_title(name.replace("_", " "), fontsize=10)
        axes.set_xlabel("optimizer step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        if name not in TRAIN_ONLY:
            axes.legend(fontsize=8)
    with atomic_write(target, "free some space") as file:
        figure.savefig(file, dpi=120)


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and plot."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.report", description="Plot the metrics of a run.")
    parser.add_argument("run", type=Path, help="folder of a run")
    args = parser.parse_args(argv)
    short_warnings()
    try:
        draw(read(args.run), args.run / "report.png")
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"plot in {args.run / 'report.png'}")


if __name__ == "__main__":
    main()
