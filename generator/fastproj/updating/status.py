"""The state of a project: its version, answers, and changes since it was rendered."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.scratch import scratch_folder
from ..shared.versions import is_older
from . import apply, linked, trees
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
    finished: str | None
    """The version of an update that was killed and has just been finished."""


def status(where: Path, template: str | None) -> Status:
    """Compare a project as it is on disk with its rendering.

    Raises:
        FastprojError: there is no project, or its template cannot be read.
    """
    finished = apply.finish(where)
    project = linked.read(where)
    project.repository.head()
    with scratch_folder(Path(tempfile.gettempdir()), "status") as work:
        before, after = sources(project, template, work)
        newest = project.version if is_older(after.newest, project.version) else after.newest
        repository = project.repository.with_objects_in(work / "objects")
        rendering = render_old(project, before, work)
        old = trees.tree_of_rendering(repository, rendering.folder, work / "index-old")
        rendered = trees.files(repository, old)
        present = trees.tree_of_work_tree(repository, rendered, work / "index-now")
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
            finished.version if finished else None,
        )


def _conflicts(repository: Repository, edited: list[str]) -> list[str]:
    """Return the unmerged files, and the edited ones with conflict markers."""
    found = {line.partition("\t")[2] for line in repository.lines("ls-files", "-u", "-z", "--", repository.where)}
    for path in edited:
        place = repository.top / path
        if place.is_file() and not place.is_symlink() and _MARKER.search(place.read_bytes()):
            found.add(path)
    return sorted(found)
