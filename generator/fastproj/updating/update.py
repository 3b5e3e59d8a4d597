"""Bring a newer template, or other answers, into a project without losing the user's edits.

The old version and the new one are rendered; git merges what changed between them into the user's
commit, and the result is staged for the user to review.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import FastprojError
from ..scratch import scratch_folder
from ..template.answers import ANSWERS_FILE, combine, option
from ..template.clone import Template, questions_in
from ..template.rendering import Rendered, copy, preload
from .apply import apply, check, check_ready
from .merge import Merged, merge
from .project import Project, newest_for, read_project


@dataclass(frozen=True)
class Wanted:
    """The options of an update."""

    to: str | None = None
    template: str | None = None
    answers: dict[str, Any] | None = None
    data: list[str] | None = None
    dry_run: bool = False
    message: str = ""  # of the commit


@dataclass(frozen=True)
class Updated:
    """The result of an update."""

    project: Project
    after: str
    answers: dict[str, tuple[Any, Any]] | None = None  # those that differ: old and new
    merged: Merged | None = None  # None if there was nothing to do
    message: str = ""  # of the commit

    @property
    def conflicts(self) -> bool:
        """Whether git could not merge a file."""
        return self.merged is not None and bool(self.merged.stages)


def update(where: Path, wanted: Wanted) -> Updated:
    """Update a project and leave the result staged; after an error, nothing was changed."""
    preload()
    project = read_project(where)
    head = check_ready(project.repository)
    with scratch_folder(Path(tempfile.gettempdir()), "update") as work:
        return _update(project, wanted, head, work)


def _update(project: Project, wanted: Wanted, head: str, work: Path) -> Updated:
    template = project.template(work, wanted.template)
    target = newest_for(project, template) if wanted.to is None else wanted.to
    target = target if target in (project.version, template.newest) else template.named(target)
    answers = combine(wanted.answers or {}, wanted.data or [], questions_in(template.at(target)))
    given = any(str(project.answers.get(key)) != str(value) for key, value in answers.items())
    moved = wanted.template is not None and template.location != project.location
    if target == project.version and not (given or moved):
        return Updated(project, target)

    repository, prefix = project.repository, project.repository.prefix
    files = repository.files(head)
    if prefix + ANSWERS_FILE not in files:
        raise FastprojError(
            f"{project.root / ANSWERS_FILE} is not committed: git add and commit it, then try again"
        )
    _render(project, template, project.version, work / "old", {})
    new = _render(project, template, target, work / "new", answers)
    repository.convert_line_ends(work / "old", work / "new", files)
    old_tree, new_tree = (
        repository.tree_of(work / it, work / f"{it}.index") for it in ("old", "new")
    )
    message = wanted.message or f"Update to template {target}"
    merged = merge(
        repository, (old_tree, head, new_tree), {prefix + path for path in new.own}, message, work
    )
    check(repository, merged)
    if not wanted.dry_run:
        apply(repository, merged, message)
    both = {
        key: (project.answers.get(key), new.answers.get(key))
        for key in project.answers | new.answers
    }
    changed = {key: values for key, values in both.items() if values[0] != values[1]}
    return Updated(project, target, changed, merged, message)


def _render(
    project: Project, template: Template, version: str, folder: Path, answers: dict[str, Any]
) -> Rendered:
    """Render a version into a folder with other answers; all that are not given stay as recorded."""
    stage, recorded = folder / project.repository.prefix, project.answers
    stage.mkdir(parents=True)
    # where copier reads them
    (stage / ANSWERS_FILE).write_text(yaml.safe_dump(recorded), encoding="utf-8")
    # The workflow of releases without this question is removed, as it installs the program from no
    # known source.
    defaults = {"update_source": "none"} if recorded.get("update_workflow") else {}
    rendered = copy(template, version, stage, answers, defaults)
    found = rendered.answers
    for key in sorted(found.keys() & recorded.keys() - answers.keys()):
        if str(found[key]) != str(recorded[key]):
            fix = f"choose another with {option(key)}, or fix {project.root / ANSWERS_FILE}"
            raise FastprojError(
                f"{recorded[key]!r} does not fit {key} in {version} of the template: {fix}"
            )
    return rendered
