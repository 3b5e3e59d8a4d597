"""The page of `fastproj report` as a file."""

import os
from pathlib import Path

from ..errors import FastprojError
from .run import Run


def write_page(runs: list[Run], output: Path | None) -> Path:
    """Write the page into the folder of the run, or beside those of several; return its file."""
    from . import page  # needs matplotlib

    folder = runs[0].folder
    file = output or (folder if len(runs) == 1 else folder.parent) / "report.html"
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        if file.is_dir() or (
            file.exists() and page.MARK not in file.read_text(encoding="utf-8", errors="replace")
        ):
            raise FastprojError(f"{file} exists and is not a report: choose another --output")
        partial.write_text(page.page(runs), encoding="utf-8", errors="backslashreplace")
        partial.replace(file)
    except OSError as error:
        raise FastprojError(
            f"cannot write {file} ({error.strerror}): choose another --output"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return file
