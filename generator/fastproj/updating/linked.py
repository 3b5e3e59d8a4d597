"""A project that was rendered: where it is, and what its answers file records."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from . import repository
from .repository import Repository


@dataclass(frozen=True)
class Linked:
    """A project and its link to a template."""

    root: Path
    repository: Repository
    location: str
    """The template's, as recorded."""
    version: str
    """The template's tag that the project is at."""
    answers: dict[str, Any]

    @property
    def answers_path(self) -> str:
        """The answers file's path in the repository."""
        return f"{self.repository.prefix}{ANSWERS_FILE}"


def folder_of(where: Path) -> Path:
    """Return the project's folder: `where` or the nearest above it that has an answers file.

    Raises:
        FastprojError: there is none.
    """
    start = Path(os.path.realpath(where))  # of a link and of `..`, what lies above is another folder than it looks
    if not os.path.isdir(start):
        raise FastprojError(f"{where} is no folder: name the project's")
    for folder in (start, *start.parents):
        if os.path.lexists(folder / ANSWERS_FILE):
            return folder
    raise FastprojError(
        f"there is no {ANSWERS_FILE} in {where} or above it: go to a project that fastproj made, or link one "
        "that has lost the file with `fastproj adopt`"
    )


def read(root: Path) -> Linked:
    """Read a project's answers.

    Raises:
        FastprojError: they cannot be read, or do not say where the project comes from; it is in no repository.
    """
    recorded = answers_in(root / ANSWERS_FILE)
    for key, what in (("_src_path", "template"), ("_commit", "version")):
        if not isinstance(recorded.get(key), str) or not recorded[key] or "\0" in recorded[key]:
            raise FastprojError(
                f"{root / ANSWERS_FILE} does not say which {what} the project comes from ({key}): "
                "let `fastproj adopt` find out"
            )
    return Linked(root, repository.open_at(root), recorded["_src_path"], recorded["_commit"], answers_of(root))


def answers_in(file: Path) -> dict[str, Any]:
    """Return what an answers file holds.

    Raises:
        FastprojError: it cannot be read, or holds no answers.
    """
    import yaml

    way_out = f"bring it back with `git checkout HEAD -- {ANSWERS_FILE}`"
    try:
        recorded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise FastprojError(f"cannot read {file} ({reason}): {way_out}") from error
    if not isinstance(recorded, dict):
        raise FastprojError(f"{file} holds no answers: {way_out}")
    return recorded


def answers_of(folder: Path) -> dict[str, Any]:
    """Return the answers that a rendering records, without copier's own entries; none where it records none.

    Raises:
        FastprojError: they cannot be read.
    """
    file = folder / ANSWERS_FILE
    found = answers_in(file) if file.is_file() else {}
    return {str(key): value for key, value in found.items() if not str(key).startswith("_")}
