"""The releases of a template, with their questions and changelog."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..shared import git, source
from ..shared.errors import FastprojError
from ..shared.source import Source
from ..shared.versions import version_of

_SHORT = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/"}
_CHANGELOGS = (Path(__file__).parents[1] / "CHANGELOG.md", Path(__file__).parents[3] / "CHANGELOG.md")


@dataclass(frozen=True)
class Releases:
    """A private copy of a template's repository."""

    source: Source
    location: str  # that projects record
    git_dir: Path
    tags: list[str]  # sorted by version, oldest first

    @property
    def newest(self) -> str:
        """The tag to update to: the version of this program, or the newest release of another template."""
        if self.source.own and self.source.revision in self.tags:
            return self.source.revision
        released = [tag for tag in self.tags if (it := version_of(tag)) and not it.is_prerelease] or self.tags
        if not released:
            raise FastprojError(f"the template {self.location} has no version: tag its commits, such as v1.0.0")
        return released[-1]

    def at(self, version: str) -> Source:
        """Return a version, with a folder that has its files."""
        return replace(self.source, location=self.location, revision=version, checkout=self.checkout(version))

    def checkout(self, version: str) -> Path:
        """Return a folder with the files of a version."""
        folder = self.git_dir.with_suffix(f".{version.replace('/', '-')}")
        if folder.exists():
            return folder
        with git.reading_templates(self.source.own):
            done = self._git("worktree", "add", "--quiet", "--detach", "--", str(folder), version)
            if done.ok and (folder / ".gitmodules").exists():
                done = git.run(folder, "submodule", "--quiet", "update", "--init", "--recursive")
        if not done.ok:
            raise FastprojError(f"git could not read {version} of the template {self.location}: {done.reason}")
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

    def questions(self, tag: str) -> dict[str, Any] | None:
        """Return the questions of a version; None if only copier can read them."""
        return source.questions(str(self.checkout(tag)))

    def news(self, before: str, after: str) -> str:
        """Return the sections of the changelog after one version, up to another."""
        places = [self.checkout(after) / "CHANGELOG.md", *(_CHANGELOGS if self.source.own else ())]
        file = next((it for it in places if it.is_file()), None)
        old, new = version_of(before), version_of(after)
        if file is None or old is None or new is None:
            return ""
        news = []
        for section in re.split(r"(?m)^(?=## )", file.read_text(encoding="utf-8", errors="replace"))[1:]:
            number = re.match(r"## \[?v?(\d[^\s\]]*)", section)
            version = version_of(number[1]) if number else None
            if version is not None and old < version and (version <= new or version.base_version == new.base_version):
                news.append(section.strip())
        return "\n\n".join(news)

    def _git(self, *arguments: str) -> git.Result:
        return git.run(self.git_dir, "--git-dir", str(self.git_dir), *arguments)


def releases_of(location: str, work: Path) -> Releases:
    """Copy the repository of a template, given by the location that a project records or by an address."""
    chosen = source.from_location(location)
    recorded = location if location.startswith("~") else chosen.location
    address = os.path.expanduser(chosen.location).removeprefix("git+")
    for short, full in _SHORT.items():
        if address.startswith(short):
            address = full + address.removeprefix(short).lstrip("/")
    git_dir = work / f"template{len(list(work.glob('*.git')))}.git"
    with git.reading_templates(chosen.own):
        done = git.run(work, "clone", "--bare", "--quiet", "--", address, str(git_dir))
    if not done.ok:
        way_out = "fix that, or pass another with --template"
        raise FastprojError(f"git could not read the template {recorded} ({done.reason}): {way_out}")
    found = git.run(git_dir, "--git-dir", str(git_dir), "tag", "--list")
    versions = {tag: version for tag in found.text.split("\n") if (version := version_of(tag)) is not None}
    return Releases(chosen, recorded, git_dir, sorted(versions, key=versions.__getitem__))
