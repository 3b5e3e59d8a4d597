"""The page of `fastproj report` as a file."""

from pathlib import Path

from ..errors import FastprojError
from . import page
from .files import replace
from .run import Run


def write_page(runs: list[Run], output: Path | None) -> Path:
    """Write the page into the folder of the run, or beside those of several; return its file."""
    folder = runs[0].folder
    file = output or (folder if len(runs) == 1 else folder.parent) / "report.html"
    try:
        if file.is_dir() or (
            file.exists() and page.MARK not in file.read_text(encoding="utf-8", errors="replace")
        ):
            raise FastprojError(f"{file} exists and is not a report: choose another --output")
        replace(file, page.page(runs))
    except OSError as error:
        raise FastprojError(
            f"cannot write {file} ({error.strerror}): choose another --output"
        ) from error
    return file
