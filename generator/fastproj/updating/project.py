"""A rendered project: what its answers file records, and the versions that it can be updated to."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FastprojError
from ..scratch import scratch_folder
from ..template.answers import ANSWERS_FILE, Answers
from ..template.clone import Template, open_template
from ..template.embedded import is_embedded
from ..template.versions import version_of
from ..template.yaml_file import RESTORE, read_answers, without_own_entries
from .repository import Repository, open_at


@dataclass(frozen=True)
class Project:
    """A project and the template version that it was rendered from."""

    root: Path
    repository: Repository
    location: str  # of the template, as recorded
    version: str  # a tag of the template
    answers: Answers

    def template(
        self,
        work: Path,
        location: str | None = None,
    ) -> Template:
        """Clone the template, or that of another location, which must have this version as well."""
        template = open_template(self.location if location is None else location, work)
        if not template.has(self.version):
            newest = f"; its newest is {template.tags[-1]}" if template.tags else ""
            fix = "check that it has all its tags"
            if is_embedded(template.location):
                fix = "install a newer fastproj"
            raise FastprojError(
                f"the template {template.location} has no version {self.version} "
                f"of {self.root}{newest}: {fix}"
            )
        return template


def root_of(where: Path) -> Path | None:
    """Return the nearest folder, from there upwards, with an answers file; None without one."""
    start = Path(os.path.realpath(where))  # the parent of a link is not what its path says
    if not os.path.isdir(start):
        raise FastprojError(f"{where} is not a folder: pass the project's folder")
    for folder in (start, *start.parents):
        if os.path.lexists(folder / ANSWERS_FILE):
            return folder
    return None


def read_project(where: Path) -> Project:
    """Return the project of a folder: the nearest one, from there upwards."""
    root = root_of(where)
    if root is None:
        raise FastprojError(f"there is no {ANSWERS_FILE} in {where} or its parents: {RESTORE}")
    recorded = read_answers(root / ANSWERS_FILE)
    for key, what in (("_src_path", "template"), ("_commit", "version")):
        if not isinstance(recorded.get(key), str) or not recorded[key]:
            raise FastprojError(
                f"{root / ANSWERS_FILE} does not record the {what} ({key}): {RESTORE}"
            )
    answers = without_own_entries(recorded)
    return Project(root, open_at(root), recorded["_src_path"], recorded["_commit"], answers)


def recorded_components(answers: Answers) -> list[str]:
    """Return the components that a project records."""
    names = answers.get("components") or []
    if not isinstance(names, list):
        raise FastprojError(f"{ANSWERS_FILE}: components is {names!r}, which is no list: {RESTORE}")
    return list(map(str, names))


def status(where: Path) -> dict[str, Any]:
    """Return the facts about a project: its version, the newest one, and its answers."""
    project = read_project(where)
    with scratch_folder(Path(tempfile.gettempdir()), "status") as work:
        template = project.template(work)
    newest = newest_for(project, template)
    return {
        "project": str(project.root),
        "template": template.location,
        "version": project.version,
        "newest": newest,
        "behind": newest != project.version,
        "answers": project.answers,
    }


def newest_for(
    project: Project,
    template: Template,
) -> str:
    """Return the newest version of a template, or the project's own if that is newer."""
    newest = version_of(template.newest)
    own = version_of(project.version)
    is_newer = newest is not None and own is not None and newest < own
    return project.version if is_newer else template.newest
