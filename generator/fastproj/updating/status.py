"""The state of a project: its version, answers, and changes since it was rendered."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE
from ..shared.scratch import scratch_folder, temporary_folder
from ..shared.versions import is_older
from .project import read_project
from .repository import Repository
from .update import render_old, sources

_MARKER = re.compile(rb"(?m)^(<{7,}|>{7,}) ")


@dataclass(frozen=True)
class Status:
    """The output of `fastproj status`."""

    project: str
    template: str
    version: str
    newest: str
    behind: bool
    answers: dict[str, Any]
    changed: list[str]
    """Rendered files that were edited."""
    deleted: list[str]
    renamed: dict[str, str]
    conflicts: list[str]
    """Files with unresolved conflicts or conflict markers."""


def status(where: Path, template: str | None) -> Status:
    """Compare a project as it is on disk with its rendering.

    Raises:
        FastprojError: there is no project, or its template cannot be read.
    """
    project = read_project(where)
    project.repository.head()
    with scratch_folder(temporary_folder(), "status") as work:
        before, after = sources(project, template, work)
        newest = project.version if is_older(after.newest, project.version) else after.newest
        repository = project.repository.with_objects_in(work / "objects")
        rendered = repository.tree_of(render_old(project, before, work).folder, work / "index")
        changed, deleted, renamed = _differences(repository, rendered)
        conflicts = _conflicts(repository, [*changed, *renamed.values()])
    outdated = newest != project.version
    found = (project.version, newest, outdated, project.answers, changed, deleted, renamed, conflicts)
    return Status(str(project.root), after.source.location, *found)


def _differences(repository: Repository, rendered: str) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the rendered files that were edited, deleted and renamed."""
    how = ["--name-status", "-z", "-M", "--no-ext-diff", "--ignore-submodules", "--diff-filter=DMRTU"]
    parts = iter(repository.lines("diff", *how, rendered, "--", repository.prefix or "."))
    changed, deleted, renamed = list[str](), list[str](), dict[str, str]()
    for letter in parts:
        path = next(parts)
        if letter.startswith("R"):
            renamed[path] = next(parts)
        elif letter == "D":  # also if git does not track it
            deleted += [] if os.path.lexists(repository.top / path) else [path]
        elif path != repository.prefix + ANSWERS_FILE and path not in changed:
            changed.append(path)
    return changed, deleted, renamed


def _conflicts(repository: Repository, edited: list[str]) -> list[str]:
    """Return the unmerged files, and the edited ones with conflict markers."""
    where = repository.prefix or "."
    found = {line.partition("\t")[2] for line in repository.lines("ls-files", "-u", "-z", "--", where)}
    for path in edited:
        place = repository.top / path
        if place.is_file() and not place.is_symlink() and _MARKER.search(place.read_bytes()):
            found.add(path)
    return sorted(found)
