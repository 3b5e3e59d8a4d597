"""The page of a report: one HTML file that loads nothing."""

from pathlib import Path
from time import strftime

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..errors import FastprojError
from . import charts, summary
from .files import replace
from .run import Run
from .times import events

MARK = '<meta name="generator" content="fastproj report">'
"""By which a report is told from other files, which it does not replace."""


def page(runs: list[Run]) -> str:
    """Return the page about one run, or a comparison of several."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.jinja").render(
        mark=MARK,
        title=", ".join(run.name for run in runs),
        date=strftime("%Y-%m-%d at %H:%M"),
        runs=runs,
        charts=charts,
        summary=summary,
        events=events,
    )


def write_page(runs: list[Run], output: Path | None) -> Path:
    """Write the page into the folder of the run, or beside those of several; return its file."""
    folder = runs[0].folder
    file = output or (folder if len(runs) == 1 else folder.parent) / "report.html"
    try:
        if file.is_dir() or (
            file.exists() and MARK not in file.read_text(encoding="utf-8", errors="replace")
        ):
            raise FastprojError(f"{file} exists and is not a report: choose another --output")
        replace(file, page(runs))
    except OSError as error:
        raise FastprojError(
            f"cannot write {file} ({error.strerror}): choose another --output"
        ) from error
    return file
