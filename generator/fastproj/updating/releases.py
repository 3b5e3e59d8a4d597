"""The releases of a template, with their questions and changelog."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..shared import git, source
from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from ..shared.rendering import copy
from ..shared.source import Source

if TYPE_CHECKING:
    from packaging.version import Version

_SHORT = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/"}
_CHANGELOGS = (Path(__file__).parents[1] / "CHANGELOG.md", Path(__file__).parents[3] / "CHANGELOG.md")


@dataclass(frozen=True)
class Releases:
    """A private copy of a template's repository."""

    source: Source
    recorded: str
    """The location that projects record."""
    git_dir: Path
    tags: list[str]
    """Sorted by version, oldest first."""

    @property
    def newest(self) -> str:
        """The tag to update to: the version of this program, or the newest release of another template.

        Raises:
            FastprojError: the template has no version.
        """
        if self.source.own and self.source.revision in self.tags:
            return self.source.revision
        released = [tag for tag in self.tags if not version_of(tag).is_prerelease] or self.tags  # type: ignore[union-attr]
        if not released:
            raise FastprojError(f"the template {self.recorded} has no version: tag its commits, such as v1.0.0")
        return released[-1]

    def render(
        self,
        tag: str,
        stage: Path,
        work: Path,
        answers: dict[str, Any],
        last: dict[str, Any] | None = None,
        ask: bool = False,
    ) -> Any:
        """Render a version into `stage` and return copier's worker.

        Answers that are not in `answers` are taken from `last` if still valid; else the template's defaults apply.

        Raises:
            FastprojError: an answer is not allowed; the template is broken.
        """
        import yaml

        if last is not None:
            stage.mkdir(parents=True)
            (stage / ANSWERS_FILE).write_text(yaml.safe_dump(last), encoding="utf-8")
        chosen = replace(self.source, location=str(self.git_dir), revision=tag)
        # The workflow of releases without this question is removed, as it installs the program from no known source.
        defaults = {"update_source": "none"} if last is not None and last.get("update_workflow") else {}
        worker = copy(work, stage, chosen, answers, defaults, ask)
        private = str(self.git_dir).encode()
        for file in (Path(folder, name) for folder, _, names in os.walk(stage) for name in names):
            if file.is_symlink() or private not in (content := file.read_bytes()):
                continue
            location = self.recorded
            if file.name == ANSWERS_FILE and yaml.safe_load(location) != location:
                location = yaml.safe_dump(location, default_style='"').strip()
            file.write_bytes(content.replace(private, location.encode()))
        file = stage / ANSWERS_FILE
        if file.is_file():  # copier may record another tag of the same commit
            text = re.sub(r"(?m)^_commit: .*$", lambda _: f"_commit: {tag}", file.read_text(encoding="utf-8"))
            file.write_text(text, encoding="utf-8")
        return worker

    def has(self, version: str) -> bool:
        """Return whether a version that a project recorded can be rendered."""
        return self._git("rev-parse", "--quiet", "--verify", "--end-of-options", f"{version}^{{commit}}").ok

    def named(self, version: str) -> str:
        """Return the tag of a version, given with or without `v`.

        Raises:
            FastprojError: there is none.
        """
        wanted = version_of(version)
        for tag in self.tags:
            if tag == version or (wanted is not None and version_of(tag) == wanted):
                return tag
        known = ", ".join(self.tags[-5:]) or "none"
        raise FastprojError(f"the template {self.recorded} has no version {version}: the newest are {known}")

    def file(self, tag: str, path: str) -> str | None:
        """Return a file of a version; None if it has no such file."""
        found = self._git("show", f"{tag}:{path}")
        return found.text if found.ok else None

    def questions(self, tag: str, work: Path) -> dict[str, Any] | None:
        """Return the questions of a version; None if only copier can read them."""
        text = self.file(tag, "copier.yml") or self.file(tag, "copier.yaml")
        if text is None:
            return None
        (work / "questions").mkdir(exist_ok=True)
        (work / "questions/copier.yml").write_text(text, encoding="utf-8")
        return source.questions(str(work / "questions"))

    def news(self, before: str, after: str) -> str:
        """Return the sections of the changelog after one version, up to another."""
        text = self.file(after, "CHANGELOG.md")
        if text is None and self.source.own:
            text = next((file.read_text(encoding="utf-8") for file in _CHANGELOGS if file.is_file()), None)
        old, new = version_of(before), version_of(after)
        if text is None or old is None or new is None:
            return ""
        sections = []
        for section in re.split(r"(?m)^(?=## )", text)[1:]:
            number = re.match(r"## \[?v?(\d[^\s\]]*)", section)
            version = version_of(number[1]) if number else None
            if version is not None and old < version and (version <= new or version.base_version == new.base_version):
                sections.append(section.strip())
        return "\n\n".join(sections)

    def _git(self, *arguments: str) -> git.Result:
        return git.run(self.git_dir, "--git-dir", str(self.git_dir), *arguments)


def version_of(tag: str) -> "Version | None":
    """Return the version of a tag, or of the tag in a description such as v1.0-2-g1a2b3c; None if it is none."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(re.sub(r"-\d+-g[0-9a-f]+$", "", tag))
    except InvalidVersion:
        return None


def is_older(tag: str, other: str) -> bool:
    """Return whether a tag stands for an older version than another one; False if either stands for none."""
    version, than = version_of(tag), version_of(other)
    return version is not None and than is not None and version < than


def of(location: str, work: Path) -> Releases:
    """Copy the repository of a template, given by the location that a project records or by an address.

    Raises:
        FastprojError: it does not exist, or git cannot read it.
    """
    git.require()
    place = os.path.abspath(os.path.expanduser(location))
    if place in (os.path.expanduser("~/.fastproj/template.bundle"), str(source.home() / "template.bundle")):
        chosen = source.embedded()
    elif location and os.path.exists(place):
        chosen = Source(os.path.realpath(place), None)
    elif re.match(r"[\w.+-]+@|[a-z+]+:", location):
        chosen = Source(location, None)
    else:
        raise FastprojError(
            f"the template {location} is not on this machine: pass its location with --template; "
            "~/.fastproj/template.bundle is the one of this program"
        )
    recorded = location if location.startswith("~") else chosen.location
    address = os.path.expanduser(chosen.location).removeprefix("git+")
    for short, full in _SHORT.items():
        if address.startswith(short):
            address = full + address.removeprefix(short).lstrip("/")
    git_dir = work / f"template{len(list(work.glob('template*')))}.git"  # copier recognizes a bare repository by `.git`
    with git.reading_templates(chosen.own):
        done = git.run(work, "clone", "--bare", "--quiet", "--", address, str(git_dir))
    if not done.ok:
        raise FastprojError(
            f"git could not read the template {recorded} ({done.reason}): fix that, or pass another with --template"
        )
    found = git.run(git_dir, "--git-dir", str(git_dir), "for-each-ref", "--format=%(refname:strip=2)", "refs/tags")
    versions = {tag: version for tag in found.text.split("\n") if (version := version_of(tag)) is not None}
    return Releases(chosen, recorded, git_dir, sorted(versions, key=versions.__getitem__))
