"""The answers of an update: what they change, and whether the new version allows them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..shared.errors import FastprojError
from ..shared.rendering import Asking
from . import trees
from .linked import Linked
from .releases import Releases
from .renderings import Rendering, rendering
from .repository import Repository


def changes(answers: dict[str, Any], recorded: dict[str, Any]) -> bool:
    """Return whether any of the given answers differs from the recorded one."""
    return any(str(recorded.get(key)) != str(value) for key, value in answers.items())


def checked_new(
    project: Linked, after: Releases, target: str, answers: dict[str, Any], ask: bool, work: Path, new: Rendering
) -> Rendering:
    """Return the rendering with the new version and answers, after asking the new questions if `ask`."""
    if new.rendered.migrates:
        raise FastprojError(
            f"the template {after.recorded} has _migrations, which would run its code here: if you trust it, use "
            "copier update --trust"
        )
    fresh = new.answers.keys() - project.answers.keys() - answers.keys()
    if ask and fresh:
        known = {key: value for key, value in new.answers.items() if key not in fresh}
        asking = Asking(f"Update to {target}?", known)
        with rendering(project, after, target, work / "asked", known, ask=asking) as finish:
            new = finish()
    for key, value in new.answers.items():
        if key in project.answers and key not in answers and str(value) != str(project.answers[key]):
            raise FastprojError(
                f"{target} no longer allows {project.answers[key]!r} for {key}: "
                f"choose another value with --{key.replace('_', '-')} or --data {key}="
            )
    return new


def replaced(
    project: Linked,
    before: Releases,
    answers: dict[str, Any],
    repository: Repository,
    old_tree: str,
    new_tree: str | None,
    work: Path,
) -> Callable[[str], bool]:
    """Return a function that tells whether the new answers, and not just the newer version, replace a file.

    `new_tree` is the new rendering if it is of the same version, else None.
    """
    if not changes(answers, project.answers):
        return lambda path: False
    if new_tree is None:
        try:
            options = {"last": project.answers}
            with rendering(project, before, project.version, work / "between", answers, **options) as finish:
                between = finish()
            new_tree = trees.tree_of_rendering(repository, between.folder, work / "index-between")
        except FastprojError:
            return lambda path: True  # answers that the old version did not know
    differing = {change.path for change in trees.changes(repository, old_tree, new_tree)}
    return differing.__contains__
