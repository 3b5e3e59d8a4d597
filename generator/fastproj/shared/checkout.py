"""The files of a version of a template, in a folder of their own, so that copier needs no git."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from . import git
from .errors import FastprojError
from .source import Source
from .versions import version_of

_SHORT = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/"}
_CLONE_S = 600.0


def check_out(source: Source, target: Path) -> Source:
    """Return a template with a folder that has its files, which is `target` if it has none yet, and its version.

    The user's folder is taken with its uncommitted changes.

    Raises:
        FastprojError: git cannot read it.
        OSError: a file cannot be copied.
    """
    if source.checkout is not None:
        return source
    place = Path(os.path.expanduser(source.location))
    if place.is_dir() and not (place / "HEAD").is_file():
        return replace(source, revision=_copy(place, target), checkout=target)
    with git.reading_templates(source.own):
        revision = source.revision if source.revision != "HEAD" else None
        branch = ["--branch", revision] if revision else []
        done = git.run(
            target.parent, "clone", "--quiet", *branch, "--", address(source.location), str(target), timeout_s=_CLONE_S
        )
        if done.ok and revision is None:
            tags = git.run(target, "tag", "--list").text.split()
            released = {tag: it for tag in tags if (it := version_of(tag)) and not it.is_prerelease}
            revision = max(released, key=released.__getitem__, default=None)
            done = git.run(target, "checkout", "--quiet", revision or "HEAD", "--")
        if done.ok and (target / ".gitmodules").exists():
            done = git.run(target, "submodule", "--quiet", "update", "--init", "--recursive", timeout_s=_CLONE_S)
        if not done.ok:
            raise FastprojError(f"git could not read the template {source.location}: {done.reason}")
        revision = revision or git.run(target, "describe", "--tags", "--always").text.strip()
    shutil.rmtree(target / ".git")
    return replace(source, revision=revision, checkout=target)


def address(location: str) -> str:
    """Return a location as git takes it."""
    short = location[:3]
    full = _SHORT[short] + location[3:].lstrip("/") if short in _SHORT else location.removeprefix("git+")
    return os.path.expanduser(full)


def _copy(folder: Path, target: Path) -> str | None:
    """Copy a folder without what git ignores there, and describe its commit; None if it is no work tree."""
    if not (folder / ".git").exists():
        shutil.copytree(folder, target, symlinks=True)
        return None
    listed = git.run(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    described = git.run(folder, "describe", "--tags", "--always")
    if not (listed.ok and described.ok):
        raise FastprojError(f"git could not read the template {folder}: {(described if listed.ok else listed).reason}")
    target.mkdir()
    for name in os.fsdecode(listed.stdout).split("\0")[:-1]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(folder / name) and not os.path.islink(folder / name):
            shutil.copytree(folder / name, target / name, symlinks=True, dirs_exist_ok=True)  # a submodule
        elif os.path.lexists(folder / name):
            shutil.copy2(folder / name, target / name, follow_symlinks=False)
    return described.text.strip()
