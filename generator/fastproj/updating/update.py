"""Bring a newer template, or other answers, into a project, without losing anything of it.

The old version is rendered once more, and so is the new one; git merges what changed between them into the user's
commit, and the result is staged for the user to look at.
"""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE, parse_data, validate
from ..shared.errors import FastprojError
from ..shared.scratch import scratch_folder
from . import apply, linked, releases
from .beside import beside
from .linked import Linked
from .merge import Merged, merge
from .releases import Releases, version_of
from .repository import Repository

OLD = "old/project"


@dataclass(frozen=True)
class Wanted:
    """What the user asks of an update."""

    to: str | None = None
    template: str | None = None
    answers: dict[str, Any] | None = None
    data: list[str] | None = None
    ask: bool = False
    dry_run: bool = False
    downgrade: bool = False


@dataclass(frozen=True)
class Updated:
    """What an update came to."""

    root: Path
    before: str
    after: str
    news: str
    answers: dict[str, tuple[Any, Any]]
    """Answers that differ: what they were, and are; None for none."""
    merged: Merged | None
    """None where there was nothing to do."""
    repository: Repository
    finished: apply.Finished | None
    """An update before this one, which was killed and has now been finished."""


def update(where: Path, wanted: Wanted) -> Updated:
    """Update a project, leaving the result staged.

    Raises:
        FastprojError: it cannot be updated; nothing was changed.
    """
    root = linked.folder_of(where)
    project = linked.read(root)
    with project.repository.locked():
        finished = apply.finish(project.repository)
        if finished is not None:
            return Updated(root, finished.label, finished.label, "", {}, None, project.repository, finished)
        project.repository.check_ready()
        if project.answers_path not in project.repository.tree("HEAD", project.answers_path):
            raise FastprojError(f"{root / ANSWERS_FILE} is not committed: git add and commit it, then try again")
        with scratch_folder(Path(tempfile.gettempdir()), "update") as work:
            return _update(project, wanted, work)


def _update(project: Linked, wanted: Wanted, work: Path) -> Updated:
    before, after = sources(project, wanted.template, work)
    target = _target(project, after, wanted)
    asked = after.questions(target, work)
    if re.search(r"(?m)^_migrations:", after.file(target, "copier.yml") or ""):
        raise FastprojError(
            f"the template {after.recorded} has migrations, which would run its code here: where you trust it, "
            "use copier update --trust"
        )
    answers = dict(wanted.answers or {})
    more = parse_data(wanted.data or [], asked)
    validate(answers, more, asked or {})
    answers |= more
    same_place = before.recorded == after.recorded
    if target == project.version and same_place and not _changes(answers, project.answers):
        return Updated(project.root, project.version, target, "", {}, None, project.repository, None)

    import copier  # noqa: F401  # once for both

    with beside(lambda: render_old(project, before, work)) as old_is_done:
        try:
            new, own, recorded = _render_new(project, after, target, answers, wanted.ask, work)
        except FastprojError:
            old_is_done()  # what is wrong with the old explains what is wrong with the new
            raise
        old_is_done()
    old = work / OLD
    repository = project.repository
    if wanted.dry_run:
        repository = repository.with_objects_in(work / "objects")
    old_tree = repository.tree_with_rendering(old, work / "index-old")
    new_tree = repository.tree_with_rendering(new, work / "index-new")
    differing = _differing(project.answers, recorded)
    label = f"template {target}"
    exchanged = _exchanged(project, before, answers, repository, old_tree, work)
    merged = merge(repository, old_tree, new_tree, label, project.answers_path, own, exchanged, work / "index")
    hidden = repository.unwatched() & {*(change.path for change in merged.changes), *merged.stages}
    if hidden:
        raise FastprojError(
            f"git is told not to look at {min(hidden)}, which the update changes: git update-index "
            "--no-assume-unchanged --no-skip-worktree it, or git sparse-checkout disable, then try again"
        )
    blocked = apply.in_the_way(repository, merged)
    if blocked:
        more_of_them = f" and {len(blocked) - 5} more" if len(blocked) > 5 else ""
        raise FastprojError(
            f"untracked files lie where the update puts new ones: {', '.join(blocked[:5])}{more_of_them}; "
            "move them away or commit them, then try again"
        )
    if not wanted.dry_run:
        apply.apply(repository, merged, target)
    news = after.news(project.version, target)
    return Updated(project.root, project.version, target, news, differing, merged, project.repository, None)


def sources(project: Linked, template: str | None, work: Path) -> tuple[Releases, Releases]:
    """Return where a project came from, and where an update comes from.

    Raises:
        FastprojError: a template cannot be read, or has not the version that the project is at.
    """
    if template is None:
        before = after = releases.of(project.location, work)
    else:
        after = releases.of(template, work)
        try:
            before = after if after.has(project.version) else releases.of(project.location, work)
        except FastprojError:
            before = after  # the old place is gone, and the new one lacks the version: told below
    if not before.has(project.version):
        newest = f"; its newest is {before.tags[-1]}" if before.tags else ""
        way_out = "install a newer fastproj" if before.source.own else "see that it has all its tags"
        raise FastprojError(
            f"the template {before.recorded} has no version {project.version}, which {project.root} is at{newest}: "
            f"{way_out}, or let `fastproj adopt` find the nearest"
        )
    asked = before.questions(project.version, work)
    if asked is not None:
        _check_kind(project, before, set(asked))
    return before, after


def _check_kind(project: Linked, before: Releases, asked: set[str]) -> None:
    """Make sure that the recorded answers are those of this template."""
    unknown = sorted(project.answers.keys() - asked)
    if unknown:
        raise FastprojError(
            f"{ANSWERS_FILE} answers {unknown[0]!r}, which the template {before.recorded} at {project.version} does "
            "not ask: it is another template, or the file was edited; name the right one with --template, or mend "
            "the file"
        )


def _target(project: Linked, after: Releases, wanted: Wanted) -> str:
    """Choose the version to go to."""
    target = after.named(wanted.to) if wanted.to is not None else after.newest
    now, then = version_of(project.version), version_of(target)
    if now is None or then is None or then >= now or wanted.downgrade:
        return target
    if wanted.to is None and after.has(project.version):
        return project.version  # between releases, say, and newer than the last one
    raise FastprojError(
        f"{target} is older than {project.version}, which the project is at: add --downgrade to go back to it"
    )


def _changes(answers: dict[str, Any], recorded: dict[str, Any]) -> bool:
    return any(str(recorded.get(key)) != str(value) for key, value in answers.items())


def render_old(project: Linked, before: Releases, work: Path) -> Path:
    """Render a project's recorded version and answers, and return the folder that holds the repository's paths.

    Raises:
        FastprojError: it cannot be rendered again, as the answers are those of another template.
    """
    tag = project.version
    base = work / OLD
    stage = _stage(base, project.repository)
    try:
        before.render(tag, stage, work, project.answers)
    except FastprojError as error:
        raise FastprojError(f"{ANSWERS_FILE} does not fit its template at {tag}: {error}") from error
    _check_kind(project, before, set(linked.answers_of(stage)))
    return base


def _render_new(
    project: Linked, after: Releases, target: str, answers: dict[str, Any], ask: bool, work: Path
) -> tuple[Path, Callable[[str], bool], dict[str, Any]]:
    """Render the version and answers to go to; also return which paths are the user's own, and the answers."""
    base = work / "new/project"
    stage = _stage(base, project.repository)
    worker = after.render(target, stage, work, answers, last=project.answers)
    recorded = linked.answers_of(stage)
    fresh = recorded.keys() - project.answers.keys() - answers.keys()
    if ask and fresh:
        known = {key: value for key, value in recorded.items() if key not in fresh}
        base = work / "asked/project"
        stage = _stage(base, project.repository)
        worker = after.render(target, stage, work, known, ask=True)
        recorded = linked.answers_of(stage)
    for key, value in recorded.items():
        if key in project.answers and key not in answers and str(value) != str(project.answers[key]):
            raise FastprojError(
                f"{target} does not allow {project.answers[key]!r} for {key} any more: "
                f"choose another with --{key.replace('_', '-')} or --data {key}="
            )
    prefix = project.repository.prefix

    def own(path: str) -> bool:
        return bool(worker.match_skip(Path(path.removeprefix(prefix))))

    return base, own, recorded


def _stage(base: Path, repository: Repository) -> Path:
    """Return where a rendering goes so that its paths under `base` are those of the repository."""
    stage = base / repository.prefix
    stage.parent.mkdir(parents=True, exist_ok=True)
    return stage


def _exchanged(
    project: Linked, before: Releases, answers: dict[str, Any], repository: Repository, old_tree: str, work: Path
) -> Callable[[str], bool]:
    """Return what tells whether the new answers, and not just the newer version, replace a file."""
    if not _changes(answers, project.answers):
        return lambda path: False
    try:
        base = work / "between/project"
        stage = _stage(base, project.repository)
        before.render(project.version, stage, work, answers, last=project.answers)
        between = repository.tree_with_rendering(base, work / "index-between")
        differing = repository.differences(old_tree, between)
    except FastprojError:
        return lambda path: True  # answers that the old version did not know
    return lambda path: path in differing


def _differing(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        key: (before.get(key), after.get(key))
        for key in [*before, *(key for key in after if key not in before)]
        if before.get(key) != after.get(key)
    }
