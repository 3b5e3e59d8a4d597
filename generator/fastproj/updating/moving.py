"""Move files into a work tree such that no file that is saved at the same time is lost.

What a file replaces is moved out and compared with what was expected; if an editor has just saved it, it is put back.
To undo a step is to move with swapped arguments.
"""

import errno
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..shared.errors import FastprojError

NOT_A_FILE = "not a file"
"""The fingerprint of a folder with files, for example."""


@dataclass(frozen=True)
class Step:
    """A file to move into place: fingerprints of what it replaces and of itself; None for no file."""

    path: str
    before: str | None
    after: str | None


def changed_meanwhile(path: str) -> FastprojError:
    """Return the error for a file that someone else has written since the update began."""
    return FastprojError(f"{path} was changed meanwhile: commit or git stash, then try again")


def occupants(top: Path, path: str) -> set[str]:
    """Return the files at a path, below it, or in place of one of its folders."""
    for folder in [*list(Path(path).parents)[-2::-1], Path(path)]:
        place = top / folder
        if place.is_symlink() or (os.path.lexists(place) and not place.is_dir()):
            return {str(folder)}
    return {
        os.path.relpath(os.path.join(root, name), top)
        for root, folders, names in os.walk(top / path)
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(root, name)))]
    }


def fingerprint(place: Path) -> str | None:
    """Return a digest of a file's content and kind; None if there is no file, or a folder without files."""
    if place.is_symlink():
        return f"link {os.readlink(place)}"
    if not place.is_file():
        return NOT_A_FILE if os.path.lexists(place) and (not place.is_dir() or occupants(place, ".")) else None
    with place.open("rb") as file:
        return f"{'x' if place.stat().st_mode & 0o100 else '-'} {hashlib.file_digest(file, 'sha256').hexdigest()}"


def replace(top: Path, step: Step, incoming: Path, outgoing: Path) -> None:
    """Move a file of the work tree to `outgoing`, and the one from `incoming` to its place.

    Raises:
        FastprojError: it is not the expected file; it was left alone.
        OSError: a file cannot be moved.
    """
    place, kept = top / step.path, outgoing / step.path
    if fingerprint(place) != step.before:
        raise changed_meanwhile(step.path)
    if step.before is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.rename(place, kept)
        if fingerprint(kept) != step.before:
            put(kept, place)
            raise changed_meanwhile(step.path)
    if step.after is None:
        with suppress(OSError):  # not empty
            for folder in place.relative_to(top).parents[:-1]:
                (top / folder).rmdir()
        return
    try:
        for empty, _, _ in os.walk(place, topdown=False):
            os.rmdir(empty)
        place.parent.mkdir(parents=True, exist_ok=True)
        put(incoming / step.path, place)
    except FileExistsError:
        raise changed_meanwhile(step.path) from None


def undo(top: Path, step: Step, incoming: Path, outgoing: Path) -> None:
    """Take back a step that was taken, wholly or in part."""
    now = fingerprint(top / step.path)
    if now != step.before and now in (step.after, None):
        replace(top, Step(step.path, now, step.before), outgoing, incoming)


def put(source: Path, target: Path) -> None:
    """Move a file to a path where there must be none; unlike a rename, a link fails if there is one."""
    try:
        os.link(source, target, follow_symlinks=False)
        source.unlink()
    except PermissionError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "created by another program", str(target)) from None
        os.rename(source, target)
