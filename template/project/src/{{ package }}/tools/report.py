"""Draw a run's curves, from its metrics.jsonl alone, into report.png.

Start it on a run's folder:

    python -m <package>.tools.report runs/first
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from .atomic_file import whole

OF_THE_STEP = {"lr", "grad_norm", "samples_per_second", "tflops", "mfu", "skipped_steps"}
NOT_DRAWN = {"split", "step", "seconds"}


def read(run: Path) -> list[dict[str, Any]]:
    """Return the rows of the run's log.

    Raises:
        UserError: there is no log, or nothing in it.
    """
    file = run / "metrics.jsonl"
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} ({error}): give the folder of a run") from error
    if not rows:
        raise UserError(f"{file} is empty: train for at least one log interval first")
    return rows


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """Plot each metric of both splits over the steps, and what belongs to the step alone below.

    Raises:
        UserError: the picture cannot be written.
    """
    from matplotlib.figure import Figure  # takes a second to import, so only where it is used

    names = list(dict.fromkeys(key for row in rows for key in row if key not in NOT_DRAWN))
    names.sort(key=lambda name: (name in OF_THE_STEP, name != "loss"))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.5 * columns, 3.2 * lines), layout="constrained")
    figure.suptitle(target.parent.name)
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(lines, columns, place)
        for split, style in (("train", "-"), ("val", "o-")):
            points = [(row["step"], row[name]) for row in rows if row["split"] == split and name in row]
            if points:
                axes.plot(*zip(*points, strict=True), style, markersize=3, linewidth=1.2, label=split)
        axes.set_title(name.replace("_", " "), fontsize=10)
        axes.set_xlabel("optimizer step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        if name not in OF_THE_STEP:
            axes.legend(fontsize=8)
    with whole(target, "free some space") as file:
        figure.savefig(file, dpi=120)


def main(argv: list[str] | None = None) -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.report", description="Draw a run's curves.")
    parser.add_argument("run", type=Path, help="a run's folder")
    args = parser.parse_args(argv)
    try:
        draw(read(args.run), args.run / "report.png")
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"curves in {args.run / 'report.png'}")


if __name__ == "__main__":
    main()
