"""The releases of a template: which there are, what each asks, and what its CHANGELOG says."""

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
_PACKAGED = Path(__file__).parents[1] / "CHANGELOG.md"
_CHECKOUT = Path(__file__).parents[3] / "CHANGELOG.md"


@dataclass(frozen=True)
class Releases:
    """A private copy of a template's repository."""

    source: Source
    recorded: str
    """What a project records as its place."""
    git_dir: Path
    tags: list[str]
    """From the oldest version to the newest."""

    @property
    def newest(self) -> str:
        """The tag that an update goes to: the program's own version, or the template's newest that is released.

        Raises:
            FastprojError: the template has no release.
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

        What `answers` does not say is as in `last`, where that still fits, or else the template's default.

        Raises:
            FastprojError: an answer is not allowed; the template is broken.
        """
        import yaml

        if last is not None:
            stage.mkdir(parents=True)
            (stage / ANSWERS_FILE).write_text(yaml.safe_dump(last), encoding="utf-8")
        at = replace(self.source, location=str(self.git_dir), revision=tag)
        worker = copy(work, stage, at, answers, {}, ask)
        self._say_place(stage, tag)
        return worker

    def _say_place(self, stage: Path, tag: str) -> None:
        """Let the rendered files say where the template lies for all, and not where our copy of it lies."""
        import yaml

        private = str(self.git_dir).encode()
        for folder, _, names in os.walk(stage):
            for name in names:
                file = Path(folder, name)
                if file.is_symlink() or private not in (content := file.read_bytes()):
                    continue
                text = self.recorded
                if name == ANSWERS_FILE and yaml.safe_load(text) != text:
                    text = yaml.safe_dump(text, default_style='"').strip()
                file.write_bytes(content.replace(private, text.encode()))
        file = stage / ANSWERS_FILE
        if file.is_file():  # a commit with two tags has but one that git describes it by
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            lines = [f"_commit: {tag}\n" if line.startswith("_commit: ") else line for line in lines]
            file.write_text("".join(lines), encoding="utf-8")

    def has(self, version: str) -> bool:
        """Return whether a project that recorded this version can be rendered again."""
        return self._git("rev-parse", "--quiet", "--verify", "--end-of-options", f"{version}^{{commit}}").ok

    def named(self, version: str) -> str:
        """Return the tag for a version that the user names, with or without its `v`.

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
        """Return a file of a version; None where it has none."""
        done = self._git("show", f"{tag}:{path}")
        return done.text if done.ok else None

    def questions(self, tag: str, work: Path) -> dict[str, Any] | None:
        """Return what a version asks; None where only copier can tell."""
        for name in ("copier.yml", "copier.yaml"):
            text = self.file(tag, name)
            if text is not None:
                (work / "questions").mkdir(exist_ok=True)
                (work / "questions/copier.yml").write_text(text, encoding="utf-8")
                return source.questions(str(work / "questions"))
        return None

    def news(self, before: str, after: str) -> str:
        """Return the sections of the CHANGELOG after one version, up to another."""
        text = self.file(after, "CHANGELOG.md")
        if text is None and self.source.own:
            packaged = next((file for file in (_PACKAGED, _CHECKOUT) if file.is_file()), None)
            text = packaged.read_text(encoding="utf-8") if packaged else None
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
    """Return the version that a tag stands for; for a commit after a tag, that tag's."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(re.sub(r"-\d+-g[0-9a-f]+$", "", tag))
    except InvalidVersion:
        return None


def of(location: str, work: Path) -> Releases:
    """Copy the repository of a template that a project records, or that the user names.

    Raises:
        FastprojError: it is not there, or git cannot read it.
    """
    expanded = os.path.abspath(os.path.expanduser(location))
    if expanded in (os.path.expanduser("~/.fastproj/template.bundle"), str(source.home() / "template.bundle")):
        chosen, recorded = source.embedded(), location if location.startswith("~") else source.embedded().location
        return _copy(chosen, recorded, os.path.expanduser(chosen.location), work)
    git.require()
    if location and os.path.exists(expanded):
        place = os.path.realpath(expanded)
        return _copy(Source(place, None), location if location.startswith("~") else place, place, work)
    if not re.match(r"[\w.+-]+@|[a-z+]+:", location):
        raise FastprojError(
            f"the template {location} is not on this machine: name its place with --template; "
            "~/.fastproj/template.bundle is what this program carries"
        )
    address = location.removeprefix("git+")
    for short, full in _SHORT.items():
        if address.startswith(short):
            address = full + address.removeprefix(short).lstrip("/")
    return _copy(Source(location, None), location, address, work)


def _copy(chosen: Source, recorded: str, address: str, work: Path) -> Releases:
    """Clone the template once; both renderings are made from the clone."""
    number = len(list(work.glob("template*")))
    git_dir = work / f"template{number}.git"  # copier takes a bare repository by its `.git`
    with git.reading_templates(chosen.own):
        done = git.run(work, "clone", "--bare", "--quiet", "--", address, str(git_dir))
    if not done.ok:
        raise FastprojError(
            f"git could not read the template {recorded} ({done.reason}): mend it, or name another with --template"
        )
    found = git.run(git_dir, "--git-dir", str(git_dir), "for-each-ref", "--format=%(refname:strip=2)", "refs/tags")
    tags = [tag for tag in found.text.split("\n") if version_of(tag) is not None]
    return Releases(chosen, recorded, git_dir, sorted(tags, key=lambda tag: version_of(tag)))  # type: ignore[arg-type,return-value]
