"""A template: its versions, the files of each, and its questions."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import embedded, git
from .errors import FastprojError
from .versions import version_of
from .yaml_file import read_yaml

_SHORT = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/"}
_CLONE_S = 600.0


@dataclass(frozen=True)
class Template:
    """A template, cloned into a scratch folder."""

    location: str  # that a project records
    clone: Path  # a bare repository
    tags: list[str]  # sorted by version, oldest first
    version: str  # the one that a new project gets: this program's, the newest release, or the commit of a folder
    own: bool  # whether it comes with this program

    @property
    def newest(self) -> str:
        """The tag to update to."""
        if self.own:
            return self.version
        released = [tag for tag in self.tags if (it := version_of(tag)) and not it.is_prerelease] or self.tags
        if not released:
            raise FastprojError(f"the template {self.location} has no version: tag its commits, such as v1.0.0")
        return released[-1]

    def at(self, version: str) -> Path:
        """Return a folder with the files of a version."""
        folder = self.clone.with_suffix(f".{version.replace('/', '-')}")
        if folder.exists():
            return folder
        done = self._git("worktree", "add", "--quiet", "--detach", "--", f"../{folder.name}", version)
        if done.ok and (folder / ".gitmodules").exists():
            update = ("submodule", "--quiet", "update", "--init", "--recursive")
            done = git.run(folder, *update, timeout_s=_CLONE_S, variables=git.to_read_templates(self.own))
        if not done.ok:
            raise FastprojError(f"git could not read {version} of the template {self.location}: {done.reason}")
        (folder / ".git").unlink()
        return folder

    def has(self, version: str) -> bool:
        """Return whether a version that a project recorded can be rendered: a tag, or a commit as in v1.0-2-g1a2b3c."""
        is_commit = re.fullmatch(r"(?:[\w.+-]+-g)?[0-9a-f]{7,64}", version) is not None  # a branch may have moved
        if is_commit:
            return self._git("rev-parse", "--quiet", "--verify", f"{version}^{{commit}}").ok
        return self._git("show-ref", "--verify", "--quiet", f"refs/tags/{version}").ok

    def named(self, version: str) -> str:
        """Return the tag of a version, given with or without `v`."""
        wanted = version_of(version)
        for tag in self.tags:
            if tag == version or (wanted is not None and version_of(tag) == wanted):
                return tag
        known = ", ".join(self.tags[-5:]) or "none"
        raise FastprojError(f"the template {self.location} has no version {version}: the newest are {known}")

    def questions(self, version: str) -> dict[str, Any]:
        """Return the questions of a version."""
        return questions(self.at(version))

    def _git(self, *arguments: str) -> git.Result:
        return git.run(self.clone, "--git-dir", ".", *arguments, variables=git.to_read_templates(self.own))


def open_template(location: str | None, work: Path) -> Template:
    """Clone a template into a scratch folder: by what a project records or the user passes; None for our own.

    Raises:
        FastprojError: git cannot read it.
    """
    git.require()
    own = location is None or embedded.is_embedded(location)
    version, folder = "", False
    if location is None or own:
        copy, version = embedded.refresh_copy()
        # One below `~` is the same on every machine, so projects keep it.
        location, address = location if location and location[0] == "~" else embedded.location(), str(copy)
    else:
        path = os.path.abspath(os.path.expanduser(location))
        folder = os.path.isdir(path)
        if location and os.path.exists(path):
            address = os.path.realpath(path)
            location = location if location.startswith("~") else address
        elif ":" in location:
            short = location[:3]
            address = _SHORT[short] + location[3:] if short in _SHORT else location.removeprefix("git+")
        else:
            raise FastprojError(
                f"the template {location} is not on this machine (no such folder or bundle): pass an existing one, or "
                f"a URL, with --template; {embedded.location()} is the one of this program"
            )
    clone = work / f"template{len(list(work.glob('*.git')))}.git"
    # The target is relative, so that a git that a signal left behind cannot create the scratch folder again.
    arguments = ["clone", "--bare", "--quiet", "--", address, clone.name]
    done = git.run(work, *arguments, timeout_s=_CLONE_S, variables=git.to_read_templates(own))
    if not done.ok:
        raise FastprojError(
            f"git could not read the template {location} ({done.reason}): fix that, or pass another with --template"
        )
    tags_of = ("for-each-ref", "--format=%(refname:lstrip=2)", "refs/tags")
    listed = git.run(clone, "--git-dir", ".", *tags_of, variables=git.to_read_templates(own)).text.split("\n")
    versions = {tag: found for tag in listed if (found := version_of(tag)) is not None}
    tags = sorted(versions, key=versions.__getitem__)
    releases = [tag for tag in tags if not versions[tag].is_prerelease]
    if not version and releases and not folder:
        version = releases[-1]
    if not version:
        described = git.run(clone, "--git-dir", str(clone), "describe", "--tags", "--always", "HEAD")
        version = described.text.strip() if described.ok else "HEAD"
    return Template(location, clone, tags, version, own)


def questions(folder: Path) -> dict[str, Any]:
    """Return the questions of a template's files."""
    file = folder / "copier.yml"
    try:
        found = read_yaml(file)
    except (OSError, ValueError) as error:
        raise FastprojError(f"cannot read the template's questions {file}: {error}") from error
    if not isinstance(found, dict):
        raise FastprojError(f"{file} does not list questions: pass a copier template")
    # copier allows `name: value` for a question with that default.
    return {
        key: entry if isinstance(entry, dict) else {"default": entry}
        for key, entry in found.items()
        if isinstance(key, str) and not key.startswith("_")
    }
