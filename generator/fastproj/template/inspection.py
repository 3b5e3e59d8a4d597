"""Inspect what a template rendered before git or the user sees it. A template is not trusted."""

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import FastprojError

# What git looks for in a folder (its setup.c, is_git_directory): the second has `objects` and
# `refs` elsewhere.
_REPOSITORIES = ({"head", "objects", "refs"}, {"head", "commondir"})


def check_rendered(
    stage: Path,
    template: str,
) -> None:
    """Raise an error if git would treat a part of a folder as its own, or if a link leaves it."""
    for path in [stage, *walk(stage)]:
        is_folder = path.is_dir() and not path.is_symlink()
        names = {name.lower() for name in os.listdir(path)} if is_folder else set()
        if is_of_git(path.name) or any(repository <= names for repository in _REPOSITORIES):
            raise FastprojError(
                f"the template {template} renders {str(path.relative_to(stage))!r}, which git "
                "treats as its own and which may make it execute code: do not use this template"
            )
    check_links(stage, template)


def check_links(
    top: Path,
    template: str,
) -> None:
    """Raise an error if a symbolic link leads out of a folder or to git's own files."""
    for path in walk(top):
        if path.is_symlink() and _leaves(path, str(top)):
            raise FastprojError(
                f"the template {template} has {str(path.relative_to(top))!r}, a symbolic link to "
                f"{os.readlink(path)!r} outside the project: do not use this template"
            )


def is_of_git(name: str) -> bool:
    """Return whether git treats a file or folder of this name as its own, on any file system."""
    return name.lower().rstrip(" .") in (".git", ".gitmodules")


def walk(top: Path) -> Iterator[Path]:
    """Return all files and folders below a folder, without following links."""
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            yield Path(folder, name)


def _leaves(
    link: Path,
    top: str,
) -> bool:
    """Return whether a step on the way to a link's target, also through others, is outside."""
    place = str(link.parent)
    steps = list(link.readlink().parts)
    for _ in range(1000):  # a loop leads nowhere
        if not steps:
            break
        step = steps.pop(0)
        place = os.path.normpath(os.path.join(place, step))
        if is_of_git(step) or not f"{place}/".startswith(f"{top}/"):
            return True
        if os.path.islink(place):
            steps = [*Path(os.readlink(place)).parts, *steps]
            place = os.path.dirname(place)
    return False
