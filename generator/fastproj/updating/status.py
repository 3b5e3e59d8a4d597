"""The version of a project, and the versions that it can be updated to."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from ..shared.scratch import scratch_folder, temporary_folder
from ..shared.template import Template, open_template
from ..shared.versions import version_of
from .project import Project, read_project


@dataclass(frozen=True)
class Status:
    """The output of `fastproj status`."""

    project: str
    template: str
    version: str
    newest: str
    behind: bool
    answers: dict[str, Any]


def status(where: Path, template: str | None) -> Status:
    """Return the version of a project and the newest one; raises an error if its template cannot be read."""
    project = read_project(where)
    with scratch_folder(temporary_folder(), "status") as work:
        _, after = templates(project, template, work)
        newest = project.version if is_older(after.newest, project.version) else after.newest
    behind = newest != project.version
    return Status(str(project.root), after.location, project.version, newest, behind, project.answers)


def is_older(tag: str, other: str) -> bool:
    """Return whether a tag stands for an older version than another one; False if either stands for none."""
    version, than = version_of(tag), version_of(other)
    return version is not None and than is not None and version < than


def templates(project: Project, location: str | None, work: Path) -> tuple[Template, Template]:
    """Return the template that a project was rendered from, and the one to update from."""
    before = after = open_template(project.location if location is None else location, work)
    if location is not None and not after.has(project.version):
        with suppress(FastprojError):  # the old place is gone, and the new one lacks the version: reported below
            before = open_template(project.location, work)
    of = f"the template {before.location}"
    if not before.has(project.version):
        newest = f"; its newest is {before.tags[-1]}" if before.tags else ""
        fix = "install a newer fastproj" if before.own else "check that it has all its tags"
        raise FastprojError(f"{of} has no version {project.version} of {project.root}{newest}: {fix}")
    if unknown := sorted(project.answers.keys() - before.questions(project.version)):
        raise FastprojError(
            f"{ANSWERS_FILE} answers {unknown[0]!r}, which {of} at {project.version} does not ask: "
            "pass the right template with --template, or fix the file"
        )
    return before, after
