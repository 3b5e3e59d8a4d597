"""A template: its versions, the files of each, and its questions."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .. import git
from ..errors import FastprojError
from . import embedded
from .answers import Answers
from .versions import is_release, version_of
from .yaml_file import expanded_size, read_yaml

_SHORT = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/", "git+": ""}
"""Spellings of copier."""
LARGEST = 100_000
"""Values in copier.yml, which copier renders one by one."""
_NO_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Template:
    """A template, cloned into a scratch folder."""

    location: str
    """That a project records."""
    clone: Path
    """A bare repository."""
    tags: list[str]
    """Sorted by version, oldest first."""
    newest: str
    """This program's version, the newest release, or the commit of a work tree."""

    def at(self, version: str) -> Path:
        """Return a folder with the files of a version."""
        folder = self.clone.parent / f"template.{version.replace('/', '-')}"
        if folder.exists():
            return folder
        checkout = ["worktree", "add", "--quiet", "--detach", "--", f"../{folder.name}", version]
        done = _git(self.clone, *checkout)
        if done.ok and (folder / ".gitmodules").exists():
            # not from this machine: it could be a private repository
            remote = {"GIT_ALLOW_PROTOCOL": "git:http:https:ssh"}
            update = ["submodule", "--quiet", "update", "--init", "--recursive"]
            done = _git(folder, *update, variables=remote)
        if not done.ok:
            raise FastprojError(
                f"git could not read {version} of the template {self.location}: {done.reason}"
            )
        (folder / ".git").unlink()
        return folder

    def has(self, version: str) -> bool:
        """Return whether there is a version that a project recorded.

        It is a tag, or a commit as in v1.0-2-g1a2b3c; a branch may have moved.
        """
        is_commit = re.fullmatch(r"([\w.+-]+-g)?[0-9a-f]{7,64}", version)
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


def open_template(
    location: str | None,
    work: Path,
) -> Template:
    """Clone a template, given by what a project records or a user passes; None for our own."""
    if location is None or embedded.is_embedded(location):
        return _open_embedded(location or "", work)
    address = _address(location)
    if os.path.exists(address) and not location.startswith("~"):
        location = address
    clone = _clone(location, address, work, {})
    tags = _tags(clone)
    releases = [tag for tag in tags if is_release(tag)] or tags
    is_work_tree = os.path.exists(os.path.join(address, ".git"))  # in which it is developed
    if releases and not is_work_tree:
        return Template(location, clone, tags, releases[-1])
    commit = _git(clone, "describe", "--tags", "--always", "HEAD").text.strip() or "HEAD"
    return Template(location, clone, tags, commit)


def _address(location: str) -> str:
    """Return the path or the URL of a template."""
    path = os.path.realpath(os.path.expanduser(location))
    if location and os.path.exists(path):
        return path
    if ":" not in location:
        raise FastprojError(
            f"the template {location} is not on this machine: pass an existing folder, or a URL"
        )
    for short, long in _SHORT.items():
        if location.startswith(short):
            return long + location.removeprefix(short)
    return location


def _open_embedded(
    location: str,
    work: Path,
) -> Template:
    copy, version = embedded.refresh_copy()
    # One below `~` is the same on every machine, so projects keep it.
    if not location.startswith("~"):
        location = embedded.location()
    clone = _clone(location, str(copy), work, _NO_SETTINGS)
    return Template(location, clone, _tags(clone), version)


def _clone(
    location: str,
    address: str,
    work: Path,
    variables: dict[str, str],
) -> Path:
    # The target is relative, so that a git that a signal left behind cannot create the scratch
    # folder again.
    command = ["clone", "--bare", "--quiet", "--", address, "template.git"]
    done = _git(work, *command, variables=variables)
    if not done.ok:
        raise FastprojError(
            f"git could not read the template {location} ({done.reason}): fix that, or pass another"
        )
    return work / "template.git"


def _tags(clone: Path) -> list[str]:
    """Return the tags that are versions, oldest first."""
    tags = _git(clone, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/tags").text
    versions = {tag: version for tag in tags.split("\n") if (version := version_of(tag))}
    return sorted(versions, key=versions.__getitem__)


def _git(
    folder: Path,
    *arguments: str,
    variables: dict[str, str] | None = None,
) -> git.Result:
    where = ["--git-dir", "."] if folder.suffix == ".git" else []
    return git.run(folder, *where, *arguments, settings=git.AS_COMMITTED, variables=variables)


def questions_in(folder: Path) -> Answers:
    """Return the questions of a template's files."""
    try:
        entries = read_yaml(folder / "copier.yml")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FastprojError(f"cannot read the template's copier.yml: {reason}") from error
    if expanded_size(entries, {}) > LARGEST:
        raise FastprojError("the template's copier.yml has aliases of aliases: do not use it")
    questions = {}
    for key, entry in entries.items():
        if not str(key).startswith("_"):
            # copier allows `name: value` for a question with that default.
            questions[str(key)] = entry if isinstance(entry, dict) else {"default": entry}
    return questions
