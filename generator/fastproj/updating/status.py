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
from .update import render, sources

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
    changed: list[str]  # rendered files that were edited
    deleted: list[str]
    renamed: dict[str, str]
    conflicts: list[str]  # files with unresolved conflicts or conflict markers


def status(where: Path, template: str | None) -> Status:
    """Compare a project as it is on disk with its rendering; raises an error if its template cannot be read."""
    project = read_project(where)
    project.repository.head()
    with scratch_folder(temporary_folder(), "status") as work:
        before, after = sources(project, template, work)
        newest = project.version if is_older(after.newest, project.version) else after.newest
        repository = project.repository.with_objects_in(work / "objects")
        rendered = repository.tree_of(render(project, before, project.version, work / "old", {}).folder, work / "index")
        changed, deleted, renamed = _differences(repository, rendered)
    files = [repository.top / path for path in (*changed, *renamed.values())]
    marked = [it for it in files if it.is_file() and not it.is_symlink() and _MARKER.search(it.read_bytes())]
    unmerged = project.repository.lines("ls-files", "-u", "-z", "--", repository.where)
    in_conflict = {str(it.relative_to(repository.top)) for it in marked} | {it.partition("\t")[2] for it in unmerged}
    conflicts = sorted(in_conflict)
    root, location, version, answers = str(project.root), after.location, project.version, project.answers
    return Status(root, location, version, newest, newest != version, answers, changed, deleted, renamed, conflicts)


def _differences(repository: Repository, rendered: str) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the rendered files that were edited, deleted and renamed."""
    how = ["--name-status", "-z", "-M", "--no-ext-diff", "--ignore-submodules", "--diff-filter=DMRTU"]
    parts = iter(repository.lines("diff", *how, rendered, "--", repository.where))
    changed, deleted, renamed = set[str](), list[str](), dict[str, str]()
    for letter in parts:
        path = next(parts)
        if letter.startswith("R"):
            renamed[path] = next(parts)
        elif letter != "D":
            changed.add(path)
        elif not os.path.lexists(repository.top / path):  # git may not track it
            deleted.append(path)
    return sorted(changed - {repository.prefix + ANSWERS_FILE}), sorted(deleted), renamed
