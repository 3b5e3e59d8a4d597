"""Bring a newer template, or other answers, into a project without losing the user's edits.

The old version and the new one are rendered; git merges what changed between them into the user's commit, and the
result is staged for the user to review.
"""

from pathlib import Path

from ..shared.answers import ANSWERS_FILE, combine
from ..shared.errors import FastprojError
from ..shared.rendering import preload
from ..shared.scratch import scratch_folder, temporary_folder
from ..shared.versions import is_older
from . import apply, journal, linked, releases, trees
from .answering import changes, checked_new, replaced
from .journal import Pending
from .linked import Linked
from .merge import merge
from .migration import addable, used_components
from .releases import Releases
from .renderings import check_answers, checked_old, rendering
from .repository import Repository
from .wanted import Updated, Wanted


def update(where: Path, wanted: Wanted) -> Updated:
    """Update a project and leave the result staged.

    Raises:
        FastprojError: it cannot be updated; nothing was changed.
    """
    preload(wanted.ask)
    interrupted = journal.pending(where)
    if interrupted is not None:
        _refuse_or_drop(*interrupted, wanted.dry_run)
    project = linked.read(where)
    repository = project.repository
    with repository.locked():
        repository.check_ready()
        if not wanted.dry_run:
            journal.clean_up(repository)  # what a kill before the first step left
        if project.answers_path not in trees.files(repository, "HEAD"):
            file = project.root / ANSWERS_FILE
            raise FastprojError(f"{file} is not committed: git add and commit it, then try again")
        with scratch_folder(temporary_folder(), "update") as work:
            return _update(project, wanted, work)


def _refuse_or_drop(repository: Repository, interrupted: Pending, dry_run: bool) -> None:
    with repository.locked():
        if not journal.outdated(repository, interrupted):
            raise FastprojError(str(interrupted))
        if not dry_run:
            journal.drop_if_outdated(repository, interrupted)


def _update(project: Linked, wanted: Wanted, work: Path) -> Updated:
    before, after = sources(project, wanted.template, work)
    target = _target(project, after, wanted)
    questions = after.questions(target)
    answers = combine(wanted.answers or {}, wanted.data or [], questions)
    if wanted.components is not None:
        answers["components"] = wanted.components(project.answers, questions or {})
    same = (target, after.recorded) == (project.version, before.recorded)
    if same and not changes(answers, project.answers):
        return Updated(project.root, project.version, target, project.repository)

    repository = project.repository.with_objects_in(work / "objects") if wanted.dry_run else project.repository
    with (
        rendering(project, before, project.version, work / "old", project.answers) as finish_old,
        rendering(project, after, target, work / "new", answers, last=project.answers) as finish_new,
    ):
        old = checked_old(project, before, finish_old)  # first, as its error explains one of the new
        new = finish_new()
    used = used_components(project, old, new)
    if more := addable(used, new, questions or {}, answers):
        answers["components"] = [*new.answers["components"], *more]
        with rendering(project, after, target, work / "migrated", answers, last=project.answers) as finish_new:
            new = finish_new()
    new = checked_new(project, after, target, answers, wanted.ask, work, new)
    renamed = {now: was for was, now in old.renamed.items()} | new.renamed
    old_tree, new_tree = (
        trees.tree_of_rendering(repository, it.folder, work / f"index-{it.folder.name}") for it in (old, new)
    )
    by_answers = replaced(project, before, answers, repository, old_tree, new_tree if same else None, work)
    merged = merge(repository, old_tree, new_tree, target, project.answers_path, renamed, new.is_own, by_answers, work)
    apply.check(repository, merged)
    if not wanted.dry_run:
        apply.apply(repository, merged, target)
    both = {key: (project.answers.get(key), new.answers.get(key)) for key in project.answers | new.answers}
    changed = {key: values for key, values in both.items() if values[0] != values[1]}
    news = after.news(project.version, target)
    diff = trees.diff(repository, merged.head.tree, merged.tree) if wanted.components and wanted.dry_run else ""
    return Updated(project.root, project.version, target, project.repository, news, changed, merged, diff, used)


def sources(project: Linked, template: str | None, work: Path) -> tuple[Releases, Releases]:
    """Return the template that a project was rendered from, and the one to update from.

    Raises:
        FastprojError: a template cannot be read, or does not have the version of the project.
    """
    if template is None:
        before = after = releases.of(project.location, work)
    else:
        after = releases.of(template, work)
        try:
            before = after if after.has(project.version) else releases.of(project.location, work)
        except FastprojError:
            before = after  # the old place is gone, and the new one lacks the version: reported below
    if not before.has(project.version):
        newest = f"; its newest is {before.tags[-1]}" if before.tags else ""
        way_out = "install a newer fastproj" if before.source.own else "check that it has all its tags"
        raise FastprojError(
            f"the template {before.recorded} has no version {project.version}, from which {project.root} was rendered"
            f"{newest}: {way_out}, or let `fastproj adopt` find the nearest"
        )
    questions = before.questions(project.version)
    if questions is not None:
        check_answers(project, before, questions)
    return before, after


def _target(project: Linked, after: Releases, wanted: Wanted) -> str:
    """Return the version to update to."""
    if wanted.components is not None:
        return project.version
    target = after.named(wanted.to) if wanted.to is not None else after.newest
    if wanted.downgrade or not is_older(target, project.version):
        return target
    if wanted.to is None and after.has(project.version):
        return project.version  # a version between releases, newer than the last one
    raise FastprojError(f"{target} is older than {project.version}, the version of the project: add --downgrade")
