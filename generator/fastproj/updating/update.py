"""Bring a newer template, or other answers, into a project without losing the user's edits.

The old version and the new one are rendered; git merges what changed between them into the user's commit, and the
result is staged for the user to review.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE, combine
from ..shared.errors import FastprojError
from ..shared.lock import locked
from ..shared.rendering import Answers, Asking, Rendered, preload
from ..shared.scratch import scratch_folder, temporary_folder
from ..shared.versions import is_older
from .apply import apply, check
from .merge import Difference, Merged, merge
from .project import Project, read_answers, read_project, without_copiers
from .releases import Releases, releases_of
from .repository import Repository

Choose = Callable[[dict[str, Any], dict[str, Any]], list[str]]
"""Returns the wanted components, given the recorded answers and the template's questions."""


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
    components: Choose | None = None
    """Stay at the project's own version, with these components."""


@dataclass(frozen=True)
class Updated:
    """The result of an update."""

    root: Path
    before: str
    after: str
    repository: Repository
    news: str = ""
    answers: dict[str, tuple[Any, Any]] | None = None
    """Answers that differ: old and new; None for none."""
    merged: Merged | None = None
    """None if there was nothing to do."""
    diff: str = ""
    """The changes as a patch, if only components would change in a dry run."""


@dataclass(frozen=True)
class Rendering:
    """A rendering of the project in a folder with the paths of its repository."""

    folder: Path
    answers: dict[str, Any]
    rendered: Rendered


def update(where: Path, wanted: Wanted) -> Updated:
    """Update a project and leave the result staged.

    Raises:
        FastprojError: it cannot be updated; nothing was changed.
    """
    preload(wanted.ask)
    project = read_project(where)
    repository = project.repository
    busy = f"another fastproj is running in {repository.top}: wait until it is done"
    with locked(repository.git_dir, busy), scratch_folder(temporary_folder(), "update") as work:
        head = repository.check_ready()
        if repository.prefix + ANSWERS_FILE not in repository.files(head):
            file = project.root / ANSWERS_FILE
            raise FastprojError(f"{file} is not committed: git add and commit it, then try again")
        return _update(project, wanted, head, work)


def _update(project: Project, wanted: Wanted, head: str, work: Path) -> Updated:
    before, after = sources(project, wanted.template, work)
    target = _target(project, after, wanted)
    questions = after.questions(target)
    answers = combine(wanted.answers or {}, wanted.data or [], questions)
    if wanted.components is not None:
        answers["components"] = wanted.components(project.answers, questions or {})
    same = (target, after.source.location) == (project.version, before.source.location)
    given = {key for key, value in answers.items() if str(project.answers.get(key)) != str(value)}
    if same and not given:
        return Updated(project.root, project.version, target, project.repository)

    repository = project.repository.with_objects_in(work / "objects") if wanted.dry_run else project.repository
    old = render_old(project, before, work)
    new = _render_new(project, after, target, answers, wanted.ask, work)
    old_tree, new_tree = (repository.tree_of(it.folder, work / f"index-{it.folder.name}") for it in (old, new))
    own = {repository.prefix + it for it in new.rendered.own}
    if given:
        between = new_tree if same else _tree_with_answers(project, before, answers, repository, work)
        was, now = repository.files(old_tree), repository.files(between or new_tree)
        own = {path for path in own if between and was.get(path) == now.get(path)}
    # A downgrade reverts what the version of the project renamed.
    table = {now: was for was, now in old.rendered.renamed.items()} | new.rendered.renamed
    table = {repository.prefix + was: repository.prefix + now for was, now in table.items()}
    message = f"Update to template {target}"
    difference = Difference(old_tree, new_tree, table, own)
    merged = merge(repository, head, difference, repository.prefix + ANSWERS_FILE, message, work)
    check(repository, merged)
    if not wanted.dry_run:
        apply(repository, merged, message)
    both = {key: (project.answers.get(key), new.answers.get(key)) for key in project.answers | new.answers}
    changed = {key: values for key, values in both.items() if values[0] != values[1]}
    news = after.news(project.version, target)
    diff = ""
    if wanted.components and wanted.dry_run:
        patch = repository.git("diff-tree", "-r", "-p", "--no-ext-diff", head, merged.tree)
        diff = patch.decode(errors="replace").rstrip()
    return Updated(project.root, project.version, target, project.repository, news, changed, merged, diff)


def render_old(project: Project, before: Releases, work: Path) -> Rendering:
    """Render the recorded version and answers of a project.

    Raises:
        FastprojError: it cannot be rendered, as the answers are those of another template.
    """
    try:
        return _render(project, before, project.version, work / "old", project.answers, {})
    except FastprojError as error:
        raise FastprojError(f"{ANSWERS_FILE} does not fit its template at {project.version}: {error}") from error


def _render(
    project: Project, template: Releases, version: str, folder: Path, answers: Answers, last: Answers, **options: Any
) -> Rendering:
    stage = folder / project.repository.prefix
    rendered = template.render(version, stage, answers, last, **options)
    return Rendering(folder, without_copiers(read_answers(stage / ANSWERS_FILE)), rendered)


def _render_new(project: Project, after: Releases, target: str, answers: Answers, ask: bool, work: Path) -> Rendering:
    """Render the new version with the new answers, after asking the new questions if `ask`."""
    new = _render(project, after, target, work / "new", answers, project.answers)
    if new.rendered.migrates:
        raise FastprojError(
            f"the template {after.source.location} has _migrations, which would run its code here: if you trust it, "
            "use copier update --trust"
        )
    fresh = new.answers.keys() - project.answers.keys() - answers.keys()
    if ask and fresh:
        known = {key: value for key, value in new.answers.items() if key not in fresh}
        asking = Asking(f"Update to {target}?", known)
        new = _render(project, after, target, work / "asked", known, {}, ask=asking)
    for key, value in new.answers.items():
        if key in project.answers and key not in answers and str(value) != str(project.answers[key]):
            raise FastprojError(
                f"{target} no longer allows {project.answers[key]!r} for {key}: "
                f"choose another value with --{key.replace('_', '-')} or --data {key}="
            )
    return new


def _tree_with_answers(
    project: Project, before: Releases, answers: Answers, repository: Repository, work: Path
) -> str | None:
    """Return the tree of the old version with the new answers; None if it does not know them."""
    try:
        between = _render(project, before, project.version, work / "between", answers, project.answers)
    except FastprojError:
        return None
    return repository.tree_of(between.folder, work / "index-between")


def sources(project: Project, template: str | None, work: Path) -> tuple[Releases, Releases]:
    """Return the template that a project was rendered from, and the one to update from.

    Raises:
        FastprojError: a template cannot be read, or does not have the version of the project.
    """
    after = releases_of(project.location if template is None else template, work)
    before = after
    if template is not None and not after.has(project.version):
        with suppress(FastprojError):  # the old place is gone, and the new one lacks the version: reported below
            before = releases_of(project.location, work)
    if not before.has(project.version):
        newest = f"; its newest is {before.tags[-1]}" if before.tags else ""
        way_out = "install a newer fastproj" if before.source.own else "check that it has all its tags"
        raise FastprojError(
            f"the template {before.source.location} has no version {project.version}, from which {project.root} was "
            f"rendered{newest}: {way_out}"
        )
    asked = before.questions(project.version)
    if asked is not None and (unknown := sorted(project.answers.keys() - asked)):
        raise FastprojError(
            f"{ANSWERS_FILE} answers {unknown[0]!r}, which the template {before.source.location} at {project.version} "
            "does not ask: pass the right template with --template, or fix the file"
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
