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


def read(where: Path) -> Linked:
    """Return the project of a folder: the nearest one, from there upwards, with an answers file.

    Raises:
        FastprojError: there is none, its answers file lacks the template or version, or it is in no git repository.
    """
    start = Path(os.path.realpath(where))  # the parent of a link is not what its path says
    if not os.path.isdir(start):
        raise FastprojError(f"{where} is no folder: pass the project's folder")
    root = next((folder for folder in (start, *start.parents) if os.path.lexists(folder / ANSWERS_FILE)), None)
    if root is None:
        raise FastprojError(
            f"there is no {ANSWERS_FILE} in {where} or its parents: go to a project that fastproj rendered, or use "
            "`fastproj adopt` if the file was lost"
        )
    recorded = read_answers(root)
    for key, what in (("_src_path", "template"), ("_commit", "version")):
        if not isinstance(recorded.get(key), str) or not recorded[key] or "\0" in recorded[key]:
            raise FastprojError(f"{root / ANSWERS_FILE} does not record the {what} ({key}): use `fastproj adopt`")
    return Linked(root, open_at(root), recorded["_src_path"], recorded["_commit"], without_copiers(recorded))


def read_answers(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's answers file; empty if it has none.

    Raises:
        FastprojError: it cannot be read, or holds no answers.
    """
    import yaml

    file, way_out = folder / ANSWERS_FILE, f"restore it with `git checkout HEAD -- {ANSWERS_FILE}`"
    if not os.path.lexists(file):
        return {}
    try:
        recorded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise FastprojError(f"cannot read {file} ({' '.join(str(error).split())}): {way_out}") from error
    if not isinstance(recorded, dict):
        raise FastprojError(f"{file} holds no answers: {way_out}")
    return recorded


def without_copiers(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of an answers file, without copier's own entries."""
    return {str(key): value for key, value in recorded.items() if not str(key).startswith("_")}
