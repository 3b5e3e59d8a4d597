"""Bring a newer template, or other answers, into a project without losing the user's edits.

The old version and the new one are rendered; git merges what changed between them into the user's commit, and the
result is staged for the user to review.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from filecmp import cmpfiles
from pathlib import Path
from typing import Any

import yaml

from ..shared.answers import ANSWERS_FILE, combine, option
from ..shared.errors import FastprojError
from ..shared.lock import locked
from ..shared.rendering import Answers, Asking, Rendered, copy, preload
from ..shared.scratch import scratch_folder, temporary_folder
from ..shared.versions import is_older
from .apply import apply, check, check_ready
from .merge import Merged, merge
from .project import Project, answers_in, read_answers, read_project
from .releases import Releases, releases_of
from .users_files import convert_line_ends, listed_renames, paths_in

# Returns the wanted components, given the recorded answers and the template's questions.
Choose = Callable[[dict[str, Any], dict[str, Any]], list[str]]


@dataclass(frozen=True)
class Wanted:
    """The options of an update."""

    to: str | None = None
    template: str | None = None
    answers: dict[str, Any] | None = None
    data: list[str] | None = None
    ask: bool = False
    dry_run: bool = False
    downgrade: bool = False
    components: Choose | None = None  # stay at the project's own version, with these components


@dataclass(frozen=True)
class Updated:
    """The result of an update."""

    project: Project
    after: str
    news: str = ""
    answers: dict[str, tuple[Any, Any]] | None = None  # those that differ: old and new; None for none
    merged: Merged | None = None  # None if there was nothing to do
    diff: str = ""  # the changes as a patch, if only components would change in a dry run

    @property
    def conflicts(self) -> bool:
        """Whether git could not merge a file."""
        return self.merged is not None and bool(self.merged.stages)


@dataclass(frozen=True)
class Rendering:
    """A rendering in a folder that has the paths of the project's repository."""

    folder: Path
    answers: dict[str, Any]
    rendered: Rendered


def update(where: Path, wanted: Wanted) -> Updated:
    """Update a project and leave the result staged.

    Raises:
        FastprojError: it cannot be updated; nothing was changed.
    """
    preload()
    project = read_project(where)
    busy = f"another fastproj is running in {project.repository.top}: wait until it is done"
    with locked(project.repository.git_dir, busy), scratch_folder(temporary_folder(), "update") as work:
        return _update(project, wanted, check_ready(project.repository), work)


def _update(project: Project, wanted: Wanted, head: str, work: Path) -> Updated:
    before, after = sources(project, wanted.template, work)
    target = _target(project, after, wanted)
    questions = after.questions(target)
    answers = combine(wanted.answers or {}, wanted.data or [], questions)
    if wanted.components is not None:
        answers["components"] = wanted.components(project.answers, questions or {})
    same = (target, after.location) == (project.version, before.location)
    given = any(str(project.answers.get(key)) != str(value) for key, value in answers.items())
    if same and not given:
        return Updated(project, target)

    repository, prefix = project.repository, project.repository.prefix
    repository = repository.with_objects_in(work / "objects") if wanted.dry_run else repository
    files = repository.files(head)
    if prefix + ANSWERS_FILE not in files:
        raise FastprojError(f"{project.root / ANSWERS_FILE} is not committed: git add and commit it, then try again")
    old = render(project, before, project.version, work / "old", {})
    new = _render_new(project, after, target, answers, wanted.ask, work)
    own = {prefix + path for path in new.rendered.own}
    if given:  # other answers may replace files of the user
        between = new.folder if same else work / "between"
        with suppress(FastprojError):  # the version of the project may not know these answers
            if not same:
                render(project, before, project.version, between, answers)
        own.intersection_update(cmpfiles(old.folder, between, own, shallow=False)[0])
    # A downgrade reverts what the project's version renamed.
    table = {now: was for was, now in old.rendered.renamed.items()} | new.rendered.renamed
    table = {prefix + was: prefix + now for was, now in table.items()}
    listed = listed_renames(table, paths_in(old.folder), paths_in(new.folder))
    convert_line_ends(repository, old.folder, new.folder, listed, files)
    old_tree, new_tree = (repository.tree_of(it.folder, work / f"{it.folder.name}.index") for it in (old, new))
    message = f"Update to template {target}" if wanted.components is None else "Change the components"
    merged = merge(repository, (old_tree, head, new_tree), listed, own, message, work)
    check(repository, merged)
    if not wanted.dry_run:
        apply(repository, merged, message)
    both = {key: (project.answers.get(key), new.answers.get(key)) for key in project.answers | new.answers}
    changed = {key: values for key, values in both.items() if values[0] != values[1]}
    shown = wanted.components and wanted.dry_run
    diff = repository.git("diff-tree", "-r", "-p", "--no-ext-diff", head, merged.tree) if shown else ""
    return Updated(project, target, after.news(project.version, target), changed, merged, diff)


def render(
    project: Project, template: Releases, version: str, folder: Path, answers: Answers, ask: Asking | None = None
) -> Rendering:
    """Render a version into a folder with other answers; all that are not given stay as recorded."""
    stage, recorded = folder / project.repository.prefix, project.answers
    stage.mkdir(parents=True)
    (stage / ANSWERS_FILE).write_text(yaml.safe_dump(recorded), encoding="utf-8")  # where copier reads them
    # The workflow of releases without this question is removed, as it installs the program from no known source.
    defaults = {"update_source": "none"} if recorded.get("update_workflow") else {}
    rendered = copy(template.git_dir.parent, stage, template.at(version), answers, defaults, ask)
    found = answers_in(read_answers(stage / ANSWERS_FILE))
    for key in sorted(found.keys() & recorded.keys() - answers.keys()):
        if str(found[key]) != str(recorded[key]):
            way_out = f"choose another with {option(key)}, or fix {project.root / ANSWERS_FILE}"
            raise FastprojError(f"{recorded[key]!r} does not fit {key} in {version} of the template: {way_out}")
    return Rendering(folder, found, rendered)


def _render_new(project: Project, after: Releases, target: str, answers: Answers, ask: bool, work: Path) -> Rendering:
    """Render the new version with the new answers, after asking the new questions if `ask`."""
    new = render(project, after, target, work / "new", answers)
    if new.rendered.migrates:
        way_out = "if you trust it, use copier update --trust"
        raise FastprojError(f"the template {after.location} has _migrations, which would run its code here: {way_out}")
    fresh = new.answers.keys() - project.answers.keys() - answers.keys()
    if not (ask and fresh):
        return new
    known = {key: value for key, value in new.answers.items() if key not in fresh}
    return render(project, after, target, work / "asked", known, Asking(f"Update to {target}?", known))


def sources(project: Project, template: str | None, work: Path) -> tuple[Releases, Releases]:
    """Return the template that a project was rendered from, and the one to update from."""
    before = after = releases_of(project.location if template is None else template, work)
    if template is not None and not after.has(project.version):
        with suppress(FastprojError):  # the old place is gone, and the new one lacks the version: reported below
            before = releases_of(project.location, work)
    of = f"the template {before.location}"
    if not before.has(project.version):
        newest = f"; its newest is {before.tags[-1]}" if before.tags else ""
        way_out = "install a newer fastproj" if before.source.own else "check that it has all its tags"
        raise FastprojError(f"{of} has no version {project.version} of {project.root}{newest}: {way_out}")
    asked = before.questions(project.version)
    if asked is not None and (unknown := sorted(project.answers.keys() - asked)):
        way_out = "pass the right template with --template, or fix the file"
        raise FastprojError(
            f"{ANSWERS_FILE} answers {unknown[0]!r}, which {of} at {project.version} does not ask: {way_out}"
        )
    return before, after


def _target(project: Project, after: Releases, wanted: Wanted) -> str:
    """Return the version to update to."""
    if wanted.components is not None:
        return project.version
    target = after.named(wanted.to) if wanted.to is not None else after.newest
    if wanted.downgrade or not is_older(target, project.version):
        return target
    if wanted.to is None and after.has(project.version):
        return project.version  # a version between releases, newer than the last one
    raise FastprojError(f"{target} is older than {project.version}, the version of the project: add --downgrade")
