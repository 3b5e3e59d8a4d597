"""The state of a project: its version, answers, and changes since it was rendered."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.errors import FastprojError
from ..shared.scratch import scratch_folder, temporary_folder
from ..shared.versions import is_older
from . import journal, linked, trees
from .renderings import render_old
from .repository import Repository
from .update import sources

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
    interrupted: str | None
    """The version of an update that was interrupted, and can be continued or aborted."""


def status(where: Path, template: str | None) -> Status:
    """Compare a project as it is on disk with its rendering.

    Raises:
        FastprojError: there is no project, or its template cannot be read.
    """
    interrupted = journal.pending(where)
    if interrupted is not None and journal.outdated(*interrupted):
        interrupted = None
    try:
        project = linked.read(where)
    except FastprojError as error:
        raise (FastprojError(str(interrupted[1])) if interrupted else error) from error
    project.repository.head()
    with scratch_folder(temporary_folder(), "status") as work:
        before, after = sources(project, template, work)
        newest = project.version if is_older(after.newest, project.version) else after.newest
        repository = project.repository.with_objects_in(work / "objects")
        rendering = render_old(project, before, work)
        old = trees.tree_of_rendering(repository, rendering.folder, work / "index-old")
        rendered = trees.files(repository, old)
        present = trees.tree_of_work_tree(repository, rendered, work / "index-now")
        nested = trees.nested_projects(trees.files(repository, present), project.answers_path)
        present = trees.tree_with(repository, present, dict.fromkeys(nested), work / "index-now")
        differing = [it for it in trees.changes(repository, old, present) if it.path in rendered]
        renamed = {was: path for was, path in trees.renames(repository, old, present).items() if was in rendered}
        changed = [it.path for it in differing if it.after is not None and it.path != project.answers_path]
        return Status(
            str(project.root),
            after.recorded,
            project.version,
            newest,
            newest != project.version,
            project.answers,
            changed,
            [it.path for it in differing if it.after is None and it.path not in renamed],
            renamed,
            _conflicts(repository, [*changed, *renamed.values()]),
            interrupted[1].version if interrupted else None,
        )


def _conflicts(repository: Repository, edited: list[str]) -> list[str]:
    """Return the unmerged files, and the edited ones with conflict markers."""
    found = {line.partition("\t")[2] for line in repository.lines("ls-files", "-u", "-z", "--", repository.where)}
    for path in edited:
        place = repository.top / path
        if place.is_file() and not place.is_symlink() and _MARKER.search(place.read_bytes()):
            found.add(path)
    return sorted(found)
