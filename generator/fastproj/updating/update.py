"""Bring a newer template, or other answers, into a project without losing the user's edits.

The old version and the new one are rendered; git merges what changed between them into the user's
commit, and the result is staged for the user to review.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import FastprojError
from ..scratch import scratch_folder
from ..template.answers import ANSWERS_FILE, Answers, combine, option
from ..template.clone import Template, questions_in
from ..template.rendering import Rendering, copy, preload
from .apply import apply, check, check_ready
from .merge import Merge, merge
from .project import Project, newest_for, read_project


@dataclass(frozen=True)
class Request:
    """The options of an update."""

    answers: Answers = field(default_factory=dict)
    data: list[str] = field(default_factory=list)
    to: str | None = None
    template: str | None = None
    dry_run: bool = False
    message: str = ""
    """Of the commit."""


@dataclass(frozen=True)
class UpdateResult:
    """What an update did."""

    project: Project
    after: str
    answers: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Those that differ: old and new."""
    merge: Merge | None = None
    """None if there was nothing to do."""
    message: str = ""
    """Of the commit."""

    @property
    def conflicts(self) -> bool:
        """Whether git could not merge a file."""
        return self.merge is not None and bool(self.merge.stages)


def update(where: Path, request: Request) -> UpdateResult:
    """Update a project and leave the result staged; after an error, nothing was changed."""
    preload()
    project = read_project(where)
    head = check_ready(project.repository)
    with scratch_folder(Path(tempfile.gettempdir()), "update") as work:
        template = project.template(work, request.template)
        target = _target(project, template, request.to)
        questions = questions_in(template.at(target))
        answers = combine(request.answers, request.data, questions)
        recorded = project.answers
        is_new = any(str(recorded.get(key)) != str(value) for key, value in answers.items())
        is_moved = request.template is not None and template.location != project.location
        if target == project.version and not is_new and not is_moved:
            return UpdateResult(project, target)

        message = request.message or f"Update to template {target}"
        new = _render(project, template, target, work / "new", answers)
        result = _merge(project, template, head, new, message, work)
        check(project.repository, result)
        if not request.dry_run:
            apply(project.repository, result, message)
    changed = {}
    for key in recorded | new.answers:
        before = recorded.get(key)
        after = new.answers.get(key)
        if before != after:
            changed[key] = (before, after)
    return UpdateResult(project, target, changed, result, message)


def _target(project: Project, template: Template, to: str | None) -> str:
    """Return the version to update to."""
    if to is None:
        return newest_for(project, template)
    return to if to in (project.version, template.newest) else template.named(to)


def _merge(
    project: Project,
    template: Template,
    head: str,
    new: Rendering,
    message: str,
    work: Path,
) -> Merge:
    repository = project.repository
    files = repository.files(head)
    if repository.prefix + ANSWERS_FILE not in files:
        raise FastprojError(
            f"{project.root / ANSWERS_FILE} is not committed: git add and commit it, then try again"
        )
    _render(project, template, project.version, work / "old", {})
    repository.convert_line_ends(work / "old", work / "new", files)
    old_tree = repository.tree_of(work / "old", work / "old.index")
    new_tree = repository.tree_of(work / "new", work / "new.index")
    own = {repository.prefix + path for path in new.own}
    return merge(repository, old_tree, head, new_tree, own, message, work)


def _render(
    project: Project,
    template: Template,
    version: str,
    folder: Path,
    answers: Answers,
) -> Rendering:
    """Render a version into a folder with other answers; all not given stay as recorded."""
    stage = folder / project.repository.prefix
    recorded = project.answers
    stage.mkdir(parents=True)
    # where copier reads them
    (stage / ANSWERS_FILE).write_text(yaml.safe_dump(recorded), encoding="utf-8")
    # The workflow of releases without this question is removed, as it installs the program from no
    # known source.
    defaults = {"update_source": "none"} if recorded.get("update_workflow") else {}
    rendering = copy(template, version, stage, answers, defaults)
    for key, answer in rendering.answers.items():
        is_kept = key in recorded and key not in answers
        if is_kept and str(answer) != str(recorded[key]):
            raise FastprojError(
                f"{recorded[key]!r} does not fit {key} in {version} of the template: "
                f"choose another with {option(key)}, or fix {project.root / ANSWERS_FILE}"
            )
    return rendering
