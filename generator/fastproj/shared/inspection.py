"""Inspect what a template rendered before git or the user sees it. A template is not trusted."""

import os
import re
from pathlib import Path

from .errors import FastprojError

# Ignored by HFS+ in a name, so that `.g<U+200C>it` is `.git` there (git's utf8.c, next_hfs_char).
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# Short names that NTFS gives to `.git` and `.gitmodules` (git's path.c, is_ntfs_dotgit and is_ntfs_dot_generic).
_SHORT_ON_NTFS = re.compile(r"git~\d+|gitmod~\d+|gi7eba~\d+")


def check_rendered(stage: Path, template: str) -> None:
    """Check a rendered folder: no path is one of git's own, and no symbolic link leaves the folder.

    Raises:
        FastprojError: git would read a file as its own, such as `.git/config`, and may execute what it says; or a link
            points outside, so that a later change of its target would change another file of the user.
    """
    for folder, folders, names in os.walk(stage):
        for name in [*folders, *names]:
            place = Path(folder, name)
            path = place.relative_to(stage)
            if is_of_git(name):
                raise FastprojError(
                    f"the template {template} renders {str(path)!r}, which git treats as its own and which may make it "
                    "execute code: do not use this template"
                )
            if place.is_symlink() and _leaves(place, stage):
                raise FastprojError(
                    f"the template {template} renders {str(path)!r}, a symbolic link to {os.readlink(place)!r} outside "
                    "the project: do not use this template"
                )


def is_of_git(name: str) -> bool:
    """Return whether git, on any file system, treats a file or folder of this name as its own."""
    for part in re.split(r"[\\/]", _IGNORED_BY_HFS.sub("", name).lower()):
        plain = part.partition(":")[0].rstrip(" .")
        if plain in (".git", ".gitmodules") or _SHORT_ON_NTFS.fullmatch(plain):
            return True
    return False


def _leaves(link: Path, stage: Path) -> bool:
    target = os.readlink(link)
    parts = Path(os.path.normpath(link.parent.relative_to(stage) / target)).parts
    return os.path.isabs(target) or ".." in parts or any(is_of_git(part) for part in parts)
