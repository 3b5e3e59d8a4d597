"""Inspect what a template rendered before git or the user sees it. A template is not trusted."""

import os
from pathlib import Path

from ..errors import FastprojError

# What git looks for in a folder (its setup.c, is_git_directory): the second has `objects` and
# `refs` elsewhere.
_REPOSITORIES = ({"head", "objects", "refs"}, {"head", "commondir"})


def check_rendered(stage: Path, template: str) -> None:
    """Raise an error if git would treat a part of a rendered folder as its own, or if a symbolic link leaves it."""
    for folder, folders, files in os.walk(stage):
        names = [*folders, *files]
        plain = {name.lower() for name in names}
        of_git = [name for name in names if is_of_git(name)]
        if of_git or any(it <= plain for it in _REPOSITORIES):
            path = Path(folder, *of_git[:1]).relative_to(stage)
            raise FastprojError(
                f"the template {template} renders {str(path)!r}, which git treats as its own and which may make it "
                "execute code: do not use this template"
            )
    check_links(stage, template)


def check_links(top: Path, template: str) -> None:
    """Raise an error if a symbolic link leads out of a folder or to git's own files, also through other links."""
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            link = os.path.join(folder, name)
            if os.path.islink(link) and _leaves(link, str(top)):
                raise FastprojError(
                    f"the template {template} has {os.path.relpath(link, top)!r}, a symbolic link to "
                    f"{os.readlink(link)!r} outside the project: do not use this template"
                )


def is_of_git(name: str) -> bool:
    """Return whether git treats a file or folder of this name as its own, on any file system."""
    return name.lower().rstrip(" .") in (".git", ".gitmodules")


def _leaves(link: str, top: str) -> bool:
    """Return whether a step on the way to a link's target is outside of a folder, or of git."""
    place, left = os.path.dirname(link), [*Path(os.readlink(link)).parts]
    for _ in range(1000):  # a loop leads nowhere
        if not left:
            break
        place = os.path.normpath(os.path.join(place, left[0]))
        if is_of_git(left.pop(0)) or not f"{place}/".startswith(f"{top}/"):
            return True
        if os.path.islink(place):
            left = [*Path(os.readlink(place)).parts, *left]
            place = os.path.dirname(place)
    return False
