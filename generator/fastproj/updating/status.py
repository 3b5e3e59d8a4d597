"""The version of a project, and the newest that it can be updated to."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.scratch import scratch_folder
from ..shared.template import Template
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


def status(where: Path) -> Status:
    """Return the version of a project and the newest one; raises an error if its template cannot be read."""
    project = read_project(where)
    with scratch_folder(Path(tempfile.gettempdir()), "status") as work:
        template = project.template(work)
    newest = newest_for(project, template)
    behind = newest != project.version
    return Status(str(project.root), template.location, project.version, newest, behind, project.answers)


def newest_for(project: Project, template: Template) -> str:
    """Return the newest version of a template, or the project's own if that is newer."""
    newest, own = version_of(template.newest), version_of(project.version)
    return project.version if newest is not None and own is not None and newest < own else template.newest
