"""Restore a lost answers file from the project's git history."""

import os
from pathlib import Path

from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from .project import read_answers
from .repository import open_at


def adopt(where: Path) -> tuple[Path, str]:
    """Write the last committed answers file that records a template and a version; return it and the commit.

    Raises:
        FastprojError: the project has one, or its history has none.
    """
    if not os.path.isdir(where):
        raise FastprojError(f"{where} is not a folder: pass the project's folder")
    root = Path(os.path.realpath(where))
    file, repository = root / ANSWERS_FILE, open_at(root)
    repository.head()
    recorded = read_answers(file) if os.path.lexists(file) else {}
    if {"_src_path", "_commit"} <= recorded.keys():
        raise FastprojError(f"{file} links the project already: update it with fastproj update")
    path = f"{repository.prefix}{ANSWERS_FILE}"
    for commit in repository.git("log", "--format=%H", "--", path).decode().split():
        content = repository.run("cat-file", "blob", f"{commit}:{path}")
        if content.ok and b"\n_src_path: " in content.stdout and b"_commit: " in content.stdout:
            file.write_bytes(content.stdout)
            return file, commit
    raise FastprojError(
        f"no commit of {repository.top} has {path} with a template and a version: render the project again with "
        "fastproj new, and copy the file from there"
    )
