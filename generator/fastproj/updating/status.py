"""How a project stands to its template: versions, answers, and what its user has changed of it."""

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.scratch import scratch_folder
from . import apply, linked
from .linked import Linked
from .releases import Releases, version_of
from .repository import Repository
from .update import render_old, sources

_MARKER = re.compile(rb"(?m)^(<{7,}|>{7,}) ")


@dataclass(frozen=True)
class Status:
    """What `fastproj status` tells."""

    project: str
    template: str
    version: str
    newest: str
    behind: bool
    answers: dict[str, Any]
    changed: list[str]
    """Rendered files that the user has edited."""
    deleted: list[str]
    renamed: dict[str, str]
    conflicts: list[str]
    """Files that are in conflict still, or hold the marks of one."""
    finished: str | None
    """The version of an update that was killed, and has been finished just now."""


def status(where: Path, template: str | None) -> Status:
    """Compare a project, as it lies on the disk, with what its template rendered.

    Raises:
        FastprojError: there is no project, or its template cannot be read.
    """
    finished = apply.finish(where)
    project = linked.read(linked.folder_of(where))
    project.repository.head()
    with scratch_folder(Path(tempfile.gettempdir()), "status") as work:
        before, after = sources(project, template, work)
        newest = newest_for(project, after)
        repository = project.repository.with_objects_in(work / "objects")
        rendering, _ = render_old(project, before, work)
        old = repository.tree_of_rendering(rendering, work / "index-old")
        rendered = repository.files(old)
        now = repository.tree_of_work_tree(rendered, work / "index-now")
        differing = [it for it in repository.changes(old, now) if it.path in rendered]
        renamed = {was: is_ for was, is_ in repository.renames(old, now).items() if was in rendered}
        changed = [it.path for it in differing if it.after is not None and it.path != project.answers_path]
        deleted = [it.path for it in differing if it.after is None]
        return Status(
            str(project.root),
            after.recorded,
            project.version,
            newest,
            newest != project.version,
            project.answers,
            changed,
            [path for path in deleted if path not in renamed],
            renamed,
            _conflicts(repository, [*changed, *renamed.values()]),
            finished.version if finished else None,
        )


def newest_for(project: Linked, after: Releases) -> str:
    """Return the version that an update would go to: the newest, unless the project is beyond it."""
    now, newest = version_of(project.version), after.newest
    then = version_of(newest)
    return project.version if now is not None and then is not None and now > then else newest


def _conflicts(repository: Repository, paths: list[str]) -> list[str]:
    """Return what git has as unmerged, and edited files that still hold a conflict's marks."""
    lines = repository.git("ls-files", "-u", "-z", "--", repository.where).split(b"\0")
    found = {os.fsdecode(line.partition(b"\t")[2]) for line in lines if line}
    for path in paths:
        place = repository.top / path
        if place.is_file() and not place.is_symlink() and _MARKER.search(place.read_bytes()):
            found.add(path)
    return sorted(found)
