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
    """
    if source.checkout is not None:
        return source
    place = Path(os.path.expanduser(source.location))
    if place.is_dir() and not (place / "HEAD").is_file():
        return replace(source, revision=_copy(place, target), checkout=target)
    with git.reading_templates(source.own):
        revision = _clone(source, target)
    shutil.rmtree(target / ".git")
    return replace(source, revision=revision, checkout=target)


def address(location: str) -> str:
    """Return a location as git takes it."""
    short = location[:3]
    full = _SHORT[short] + location[3:].lstrip("/") if short in _SHORT else location.removeprefix("git+")
    return os.path.expanduser(full)


def _clone(source: Source, target: Path) -> str:
    """Clone a repository or bundle at its version or, without one, at its newest release, and return that."""
    wanted = source.revision if source.revision != "HEAD" else None
    branch = ["--branch", wanted] if wanted else []
    place = [address(source.location), str(target)]
    _run(source, target.parent, "clone", "--quiet", *branch, "--", *place)
    if wanted is None:
        versions = {tag: version_of(tag) for tag in _run(source, target, "tag", "--list").split()}
        releases = {tag: version for tag, version in versions.items() if version and not version.is_prerelease}
        wanted = max(releases, key=releases.__getitem__, default=None)
        _run(source, target, "checkout", "--quiet", wanted or "HEAD", "--")
    if (target / ".gitmodules").exists():
        _run(source, target, "submodule", "--quiet", "update", "--init", "--recursive")
    return wanted or _run(source, target, "describe", "--tags", "--always")


def _copy(folder: Path, target: Path) -> str | None:
    """Copy a folder without what git ignores there, and describe its commit; None if it is no work tree."""
    if not (folder / ".git").exists():
        shutil.copytree(folder, target, symlinks=True)
        return None
    source = Source(str(folder), None)
    for name in _run(source, folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")[:-1]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(folder / name) and not os.path.islink(folder / name):
            shutil.copytree(folder / name, target / name, symlinks=True)  # a submodule
        elif os.path.lexists(folder / name):
            shutil.copy2(folder / name, target / name, follow_symlinks=False)
    return _run(source, folder, "describe", "--tags", "--always")


def _run(source: Source, folder: Path, *arguments: str) -> str:
    done = git.run(folder, *arguments, timeout_s=_CLONE_S)
    if not done.ok:
        raise FastprojError(f"git could not read the template {source.location}: {done.reason}")
    return os.fsdecode(done.stdout).strip("\n")
