"""A template: its versions, the files of each, and its questions."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import git
from ..errors import FastprojError
from . import embedded
from .versions import version_of
from .yaml_file import read_yaml

_SHORT = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/"}
_NO_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Template:
    """A template, cloned into a scratch folder."""

    location: str  # that a project records
    clone: Path  # a bare repository
    tags: list[str]  # sorted by version, oldest first
    newest: str  # this program's version, the newest release, or the commit of a work tree

    def at(self, version: str) -> Path:
        """Return a folder with the files of a version."""
        folder = self.clone.parent / f"template.{version.replace('/', '-')}"
        if folder.exists():
            return folder
        done = _git(
            self.clone, "worktree", "add", "--quiet", "--detach", "--", f"../{folder.name}", version
        )
        if done.ok and (folder / ".gitmodules").exists():
            done = _git(folder, "submodule", "--quiet", "update", "--init", "--recursive")
        if not done.ok:
            raise FastprojError(
                f"git could not read {version} of the template {self.location}: {done.reason}"
            )
        (folder / ".git").unlink()
        return folder

    def has(self, version: str) -> bool:
        """Return whether a version that a project recorded can be rendered: a tag, or a commit as in v1.0-2-g1a2b3c."""
        # a branch may have moved
        is_commit = re.fullmatch(r"(?:[\w.+-]+-g)?[0-9a-f]{7,64}", version) is not None
        name = f"{version}^{{commit}}" if is_commit else f"refs/tags/{version}"
        return _git(self.clone, "rev-parse", "--quiet", "--verify", name).ok

    def named(self, version: str) -> str:
        """Return the tag of a version, given with or without `v`."""
        for tag in (version, f"v{version}"):
            if tag in self.tags:
                return tag
        known = ", ".join(self.tags[-5:]) or "none"
        raise FastprojError(
            f"the template {self.location} has no version {version}: the newest are {known}"
        )


def open_template(location: str | None, work: Path) -> Template:
    """Clone a template into a scratch folder: by what a project records or the user passes; None for our own."""
    if location is None or embedded.is_embedded(location):
        copy, version = embedded.refresh_copy()
        # One below `~` is the same on every machine, so projects keep it.
        location = location if location and location.startswith("~") else embedded.location()
        clone = _clone(location, str(copy), work, _NO_SETTINGS)
        return Template(location, clone, _tags(clone), version)
    address = os.path.abspath(os.path.expanduser(location))
    if location and os.path.exists(address):
        address = os.path.realpath(address)
        location = location if location.startswith("~") else address
    elif ":" in location:
        short = location[:3]
        address = _SHORT[short] + location[3:] if short in _SHORT else location.removeprefix("git+")
    else:
        raise FastprojError(
            f"the template {location} is not on this machine: pass an existing folder, or a URL"
        )
    clone = _clone(location, address, work, {})
    tags = _tags(clone)
    releases = [tag for tag in tags if (it := version_of(tag)) and not it.is_prerelease] or tags
    if not releases or os.path.exists(
        os.path.join(address, ".git")
    ):  # a work tree, in which it is developed
        commit = _git(clone, "describe", "--tags", "--always", "HEAD").text.strip() or "HEAD"
        return Template(location, clone, tags, commit)
    return Template(location, clone, tags, releases[-1])


def _clone(location: str, address: str, work: Path, variables: dict[str, str]) -> Path:
    # The target is relative, so that a git that a signal left behind cannot create the scratch
    # folder again.
    done = _git(
        work, "clone", "--bare", "--quiet", "--", address, "template.git", variables=variables
    )
    if not done.ok:
        raise FastprojError(
            f"git could not read the template {location} ({done.reason}): fix that, or pass another"
        )
    return work / "template.git"


def _tags(clone: Path) -> list[str]:
    """Return the tags that are versions, oldest first."""
    listed = _git(clone, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/tags").text.split(
        "\n"
    )
    versions = {tag: found for tag in listed if (found := version_of(tag)) is not None}
    return sorted(versions, key=versions.__getitem__)


def _git(folder: Path, *arguments: str, variables: dict[str, str] | None = None) -> git.Result:
    where = ["--git-dir", "."] if folder.suffix == ".git" else []
    return git.run(folder, *where, *arguments, settings=git.AS_COMMITTED, variables=variables)


def questions_in(folder: Path) -> dict[str, Any]:
    """Return the questions of a template's files."""
    file = folder / "copier.yml"
    try:
        found = read_yaml(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FastprojError(f"cannot read the template's {file.name}: {reason}") from error
    # copier allows `name: value` for a question with that default.
    return {
        key: entry if isinstance(entry, dict) else {"default": entry}
        for key, entry in found.items()
        if isinstance(key, str) and not key.startswith("_")
    }
