"""Link a repository to the release that it was rendered from, if its answers file is lost or incomplete.

The answer to an open question is read from the files: a rendering with a marker as the answer shows the lines in which
it appears. A choice is the one whose rendering has the fewest different lines.
"""

import os
import re
import shutil
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE, choices, combine, package_of
from ..shared.errors import FastprojError
from ..shared.scratch import scratch_folder
from . import linked, releases
from .releases import Releases

DEFAULT_TEMPLATE = "~/.fastproj/template.bundle"
# Answers that no project has by chance; for integers, several, as a template may not allow each.
_MARKERS: dict[str, list[Any]] = {"str": ["Qztelling Valuex"], "int": [61, 53, 47, 43]}

Lines = dict[str, list[str]]
"""The lines of each rendered file."""


@dataclass(frozen=True)
class Adopted:
    """The release and answers that were found."""

    root: Path
    template: str
    version: str
    differing: int
    lines: int
    """Lines in a rendering of this version with these answers, and how many of them differ."""
    answers: dict[str, tuple[Any, str]]
    """Each answer and its source."""
    others: dict[str, int]
    """Differing lines of the other versions."""
    written: bool


def adopt(where: Path, template: str | None, given: dict[str, Any], data: list[str], dry_run: bool) -> Adopted:
    """Find the nearest release and answers, and write the answers file; nothing else is changed.

    Raises:
        FastprojError: the project is linked already, or was not rendered from this template.
    """
    root = where.absolute()
    if not os.path.isdir(root):
        raise FastprojError(f"{where} is no folder: pass the project's folder")
    file = root / ANSWERS_FILE
    recorded = linked.read_answers(root)
    if template is None and isinstance(recorded.get("_src_path"), str) and isinstance(recorded.get("_commit"), str):
        raise FastprojError(f"{file} links the project already: update it with fastproj update")
    location = template or recorded.get("_src_path")
    with scratch_folder(Path(tempfile.gettempdir()), "adopt") as work:
        found = releases.of(location if isinstance(location, str) else DEFAULT_TEMPLATE, work)
        search = _Search(found, root, work, found.questions(found.newest) or {})
        known = combine(given, data, search.asked or None)
        origin = dict.fromkeys(known, "given")
        for key, value in recorded.items():
            if key not in known and key in search.asked:
                known[key], origin[key] = value, f"as {ANSWERS_FILE} says"
        if "project_name" not in known:
            known["project_name"], origin["project_name"] = _project_name(root), "from the files"
        search.infer(known, origin)
        near = search.distances({tag: (tag, known) for tag in reversed(found.tags)})
        if not near:
            search.render(found.newest, known)  # raises the reason
        version = min(near, key=lambda tag: near[tag])
        differing, stage = near.pop(version), search.render(version, known)
        lines = sum(len(content) for content in _read_lines(stage).values())
        if differing > lines * 0.6:
            raise FastprojError(
                f"{root} does not look like a rendering of {found.recorded}: {differing} of {lines} lines differ from "
                "the nearest; pass its template with --template, or its answers as options"
            )
        rendered = linked.without_copiers(linked.read_answers(stage))
        answers = {key: (value, origin.get(key, "default")) for key, value in rendered.items()}
        if not dry_run:
            partial = file.with_name(f"{ANSWERS_FILE}.fastproj")
            try:
                shutil.copyfile(stage / ANSWERS_FILE, partial)
                os.replace(partial, file)
            finally:
                partial.unlink(missing_ok=True)
        return Adopted(root, found.recorded, version, differing, lines, answers, near, not dry_run)


def _project_name(root: Path) -> str:
    """Return the name in pyproject.toml, of the only package, or of the folder."""
    try:
        declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        declared = None
    packages = [file.parent.name for file in root.glob("src/*/__init__.py")]
    if isinstance(declared, str) and (not packages or package_of(declared) in packages):
        return declared
    return packages[0] if len(packages) == 1 else root.name


@dataclass
class _Search:
    """Renders the template with different answers and compares the results with a project."""

    found: Releases
    root: Path
    work: Path
    questions: dict[str, Any]
    rendered: dict[str, Lines | None] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Any]:
        """The questions that are not computed."""
        return {key: entry for key, entry in self.questions.items() if entry.get("when") is not False}

    def render(self, tag: str, answers: dict[str, Any]) -> Path:
        """Render a version and return its folder; other questions take their defaults."""
        stage = self.work / f"try{len(self.rendered)}" / "project"
        self.found.render(tag, stage, answers)
        return stage

    def lines(self, tag: str, answers: dict[str, Any]) -> Lines | None:
        """Return the lines of a rendering; None if the answers are not allowed."""
        key = repr((tag, sorted(answers.items())))
        if key not in self.rendered:
            self.rendered[key] = None
            with suppress(FastprojError):
                stage = self.render(tag, answers)
                self.rendered[key] = _read_lines(stage)
                shutil.rmtree(stage.parent)
        return self.rendered[key]

    def distances(self, candidates: dict[Any, tuple[str, dict[str, Any]]]) -> dict[Any, int]:
        """Return how many lines of each allowed candidate differ, in the files that any of them has."""
        lines = {key: self.lines(*candidate) for key, candidate in candidates.items()}
        allowed = {key: found for key, found in lines.items() if found is not None}
        ours = {path: Counter(_lines(self.root / path)) for found in allowed.values() for path in found}
        return {
            key: sum(_distance(Counter(found.get(path, [])), content) for path, content in ours.items())
            for key, found in allowed.items()
        }

    def infer(self, known: dict[str, Any], origin: dict[str, str]) -> None:
        """Find the unknown answers: numbers and texts in the files, then choices, each the nearest."""
        # All choices at once, so that every file is rendered in which an answer may appear.
        every = {
            key: choices(self.questions, key)[:-1]
            for key, entry in self.asked.items()
            if entry.get("multiselect") and key not in known
        }
        unknown = {key: entry for key, entry in self.asked.items() if key not in known}
        for key, entry in unknown.items():
            if "choices" not in entry and (seen := self._seen(every | known, key, entry.get("type", "str"))):
                origin[key] = "from the files"
                # The default is a candidate too: a file may contain 1 where the answer is 0, for example.
                best = self._nearest(every | known, key, [None, *seen])
                known |= {} if best is None else {key: best}
        for key in (key for key, entry in unknown.items() if "choices" in entry):
            offered = choices(self.questions, key)
            if key in every:
                best = []
                for choice in every[key]:
                    best = self._nearest(known, key, [best, [*best, choice]]) or best
            else:
                best = offered[0] if len(offered) == 1 else self._nearest(known, key, offered)
            if best is not None:
                known[key], origin[key] = best, "nearest" if len(offered) > 1 else "the only one"

    def _nearest(self, known: dict[str, Any], key: str, values: list[Any]) -> Any:
        """Return the nearest answer to a question; None (also a candidate, for the default) if all are equally near."""
        answers = [known if value is None else known | {key: value} for value in values]
        near = self.distances({number: (self.found.newest, it) for number, it in enumerate(answers)})
        return values[min(near, key=lambda number: near[number])] if len(set(near.values())) > 1 else None

    def _seen(self, known: dict[str, Any], key: str, kind: str) -> list[Any]:
        """Return what the project's lines contain most often where a rendering has this answer."""
        for marker in _MARKERS.get(kind, []):
            rendering = self.lines(self.found.newest, known | {key: marker})
            if rendering is not None:
                seen = Counter(_contents(rendering, self.root, str(marker)))
                return [type(marker)(text) for text, _ in seen.most_common(3)]
        return []


def _distance(theirs: Counter[str], ours: Counter[str]) -> int:
    return max((theirs - ours).total(), (ours - theirs).total())


def _contents(rendering: Lines, root: Path, marker: str) -> Iterator[str]:
    """Yield what the project's lines contain where a rendering has the marker."""
    for path, lines in rendering.items():
        for line in lines:
            if line.count(marker) != 1 or line.strip() == marker:
                continue
            before, _, after = line.partition(marker)
            pattern = re.compile(re.escape(before) + (r"(\d+)" if marker.isdecimal() else "(.+)") + re.escape(after))
            for ours in _lines(root / path):
                found = pattern.fullmatch(ours)
                if found:
                    yield found[1]


def _read_lines(folder: Path) -> Lines:
    """Read the rendered files, except for the answers file."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != ANSWERS_FILE)
    return {str(file.relative_to(folder)): _lines(file) for file in files}


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
