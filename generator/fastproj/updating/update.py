"""Bring a newer template, or other answers, into a project without losing the user's edits.

The old version and the new one are rendered; git merges what changed between them into the user's
commit, and the result is staged for the user to review.
"""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import FastprojError
from ..scratch import scratch_folder
from ..template.answers import (
    ANSWERS_FILE,
    Answers,
    combine,
    component_table,
    option,
    with_required,
)
from ..template.clone import Template, questions_in
from ..template.inspection import walk
from ..template.rendering import Rendering, copy, preload
from .apply import apply, check, check_ready, find_undo
from .merge import Merge, Renderings, merge
from .project import Project, newest_for, read_project, recorded_components
from .repository import Repository, convert_line_ends

_NEWER = "kept with your changes; the template has a newer version"


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
    keeps_staged: bool = False
    """Whether the project may have staged changes, to which it adds."""


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


def update(
    where: Path,
    request: Request,
) -> UpdateResult:
    """Update a project and leave the result staged; after an error, nothing was changed."""
    preload()
    project = read_project(where)
    head = check_ready(project.repository, request.keeps_staged)
    with scratch_folder(Path(tempfile.gettempdir()), "update") as work:
        template = project.template(work, request.template)
        target = _target(project, template, request.to)
        questions = questions_in(template.at(target))
        answers = combine(request.answers, request.data, questions)
        dropped = _keep_components(project, questions, answers)
        recorded = project.answers
        is_new = any(str(recorded.get(key)) != str(value) for key, value in answers.items())
        is_moved = request.template is not None and template.location != project.location
        if target == project.version and not is_new and not is_moved:
            return UpdateResult(project, target)

        message = request.message or f"Update to template {target}"
        new = _render(project, template, target, work / "new", answers)
        result = _merge(project, template, head, new, dropped, message, work)
        check(project.repository, result)
        if result.stages and head != project.repository.head():
            files = ", ".join(sorted(result.unmerged))
            raise FastprojError(
                f"{files} would be in conflict with what is staged: commit that, then try again"
            )
        if not request.dry_run:
            result.undo = find_undo(project.repository, result, work)
            apply(project.repository, result, message)
    changed = {}
    for key in recorded | new.answers:
        before = recorded.get(key)
        after = new.answers.get(key)
        if before != after:
            changed[key] = (before, after)
    return UpdateResult(project, target, changed, result, message)


def _target(
    project: Project,
    template: Template,
    to: str | None,
) -> str:
    """Return the version to update to."""
    if to is None:
        return newest_for(project, template)
    return to if to in (project.version, template.newest) else template.named(to)


def _merge(
    project: Project,
    template: Template,
    head: str,
    new: Rendering,
    dropped: list[str],
    message: str,
    work: Path,
) -> Merge:
    repository = project.repository
    if repository.answers_file not in repository.files(head):
        raise FastprojError(
            f"{project.root / ANSWERS_FILE} is not committed: "
            "git add -f and commit it, then try again"
        )
    _render(project, template, project.version, work / "old", {})
    renderings = _renderings(repository, head, work)
    own = {repository.prefix + path: _NEWER for path in new.own}
    own |= _own_files(project, template, dropped, work)
    return merge(repository, renderings, head, own, message, work)


def _keep_components(
    project: Project,
    questions: Answers,
    answers: Answers,
) -> list[str]:
    """Add the project's components to the answers, with those that they now require.

    Return those that the template no longer has for the project's framework.
    """
    table = component_table(questions)
    if not table or "components" in answers or "components" not in project.answers:
        return []
    framework = project.answers.get("framework")
    recorded = recorded_components(project.answers)
    dropped = []
    for name in recorded:
        frameworks = table.get(name, {}).get("frameworks", [framework])
        if name not in table or (framework not in frameworks and "framework" not in answers):
            dropped.append(name)
    answers["components"] = with_required(set(recorded) - set(dropped), table)
    return dropped


def _own_files(
    project: Project,
    template: Template,
    dropped: list[str],
    work: Path,
) -> dict[str, str]:
    """Return the files of components that the template dropped, which stay with the user."""
    if not dropped:
        return {}
    table = component_table(questions_in(template.at(project.version)))
    others = [
        name
        for name in recorded_components(project.answers)
        if not set(dropped) & set(with_required([name], table))
    ]
    _render(project, template, project.version, work / "others", {"components": others})
    reason = f"stays as yours; the template no longer has {', '.join(dropped)}"
    files = {}
    for path in walk(work / "old"):
        relative = path.relative_to(work / "old")
        if not path.is_dir() and not os.path.lexists(work / "others" / relative):
            files[str(relative)] = reason
    return files


def _renderings(
    repository: Repository,
    head: str,
    work: Path,
) -> Renderings:
    """Read the renderings, where files that the user converted to CRLF are so, to merge lines."""
    old = repository.tree_of(work / "old", work / "old.index")
    new = repository.tree_of(work / "new", work / "new.index")
    renames = repository.renames(old, new)
    renames_by_user = repository.renames(old, head)
    names = {now: was for was, now in renames_by_user.items()}
    converted = 0
    for path in repository.with_crlf():
        was = names.get(path, path)
        files = {work / "old" / was, work / "new" / was, work / "new" / renames.get(was, was)}
        converted += sum(map(convert_line_ends, files))
    if converted:
        old = repository.tree_of(work / "old", work / "old.index")
        new = repository.tree_of(work / "new", work / "new.index")
    return Renderings(repository.files(old), repository.files(new), renames, renames_by_user)


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
                f"choose another with {option(key)}"
            )
    return rendering
