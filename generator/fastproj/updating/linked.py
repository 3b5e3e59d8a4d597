"""A rendered project: its folder, and what its answers file records."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from .repository import Repository, open_at


@dataclass(frozen=True)
class Linked:
    """A project and the template version that it was rendered from."""

    root: Path
    repository: Repository
    location: str
    """The template's, as recorded."""
    version: str
    """The tag of the template."""
    answers: dict[str, Any]

    @property
    def answers_path(self) -> str:
        """The path of the answers file in the repository."""
        return f"{self.repository.prefix}{ANSWERS_FILE}"


def folder_of(where: Path) -> Path:
    """Return the project's folder: `where` or the nearest parent with an answers file.

    Raises:
        FastprojError: there is none.
    """
    start = Path(os.path.realpath(where))  # the parent of a link is not what its path says
    if not os.path.isdir(start):
        raise FastprojError(f"{where} is no folder: pass the project's folder")
    for folder in (start, *start.parents):
        if os.path.lexists(folder / ANSWERS_FILE):
            return folder
    raise FastprojError(
        f"there is no {ANSWERS_FILE} in {where} or its parents: go to a project that fastproj rendered, or use "
        "`fastproj adopt` if the file was lost"
    )


def read(root: Path) -> Linked:
    """Read a project's answers file.

    Raises:
        FastprojError: it cannot be read or lacks the template or version; the project is not in a git repository.
    """
    recorded = read_answers(root / ANSWERS_FILE)
    for key, what in (("_src_path", "template"), ("_commit", "version")):
        if not isinstance(recorded.get(key), str) or not recorded[key] or "\0" in recorded[key]:
            raise FastprojError(f"{root / ANSWERS_FILE} does not record the {what} ({key}): use `fastproj adopt`")
    return Linked(root, open_at(root), recorded["_src_path"], recorded["_commit"], answers_of(root))


def read_answers(file: Path) -> dict[str, Any]:
    """Return the content of an answers file.

    Raises:
        FastprojError: it cannot be read, or holds no answers.
    """
    import yaml

    way_out = f"restore it with `git checkout HEAD -- {ANSWERS_FILE}`"
    try:
        recorded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise FastprojError(f"cannot read {file} ({' '.join(str(error).split())}): {way_out}") from error
    if not isinstance(recorded, dict):
        raise FastprojError(f"{file} holds no answers: {way_out}")
    return recorded


def answers_of(folder: Path) -> dict[str, Any]:
    """Return the answers that a rendering records, without copier's own entries; empty if it has no answers file."""
    file = folder / ANSWERS_FILE
    found = read_answers(file) if file.is_file() else {}
    return {str(key): value for key, value in found.items() if not str(key).startswith("_")}
