"""The commands about runs: `report`."""

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[RUN]...", help="Folders of runs, or their names in runs/; the newest run by default."),
]
Page = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write; report.html in the folder of the run by default.")
]


def report(runs: Runs = None, output: Page = None) -> None:
    """Summarize a run, or compare several: what limits the speed, and a page with curves, times and events."""
    from . import terminal
    from .runs.report import write_page
    from .runs.run import read_runs
    from .runs.summary import text

    found = read_runs(runs or [])
    terminal.report(text(found), "the runs were read")
    page = write_page(found, output)
    terminal.report(f"\npage  {page}", f"{page} was written")
