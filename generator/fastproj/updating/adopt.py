"""Link a repository to the release that it was rendered from, if its answers file is lost or incomplete.

Candidates for texts and numbers are read from the files: a rendering with a marker as the answer shows the lines in
which it appears. Of the candidates, and of the choices, the answer is the one whose rendering has the fewest different
lines.
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
from ..shared.scratch import scratch_folder, temporary_folder
from ..shared.source import embedded_location
from . import linked, releases
from .line_counts import count_all, count_lines, difference
from .releases import Releases

_MARKERS: dict[str, str | int] = {"str": "Qztelling Valuex", "int": 61}  # answers that no project has by chance


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
        raise FastprojError(f"{where} is not a folder: pass the project's folder")
    recorded = linked.read_answers(root)
    if template is None and isinstance(recorded.get("_src_path"), str) and isinstance(recorded.get("_commit"), str):
        raise FastprojError(f"{root / ANSWERS_FILE} links the project already: update it with fastproj update")
    location = template or recorded.get("_src_path")
    with scratch_folder(temporary_folder(), "adopt") as work:
        found = releases.of(location if isinstance(location, str) else embedded_location(), work)
        questions = found.questions(found.newest) or {}
        options = combine(given, data, questions or None)
        kept = {key: value for key, value in recorded.items() if key in questions}
        known = {"project_name": _project_name(root)} | kept | options
        sources = {"project_name": "from the files"} | dict.fromkeys(kept, f"as {ANSWERS_FILE} says")
        search = _Search(found, root, work, questions, known, sources | dict.fromkeys(options, "given"))
        search.infer()
        near = search.distances({tag: (tag, known) for tag in reversed(found.tags)})
        version = min(near, key=near.__getitem__, default=found.newest)
        stage = search.render(version, known)  # if no version allows the answers, this raises the reason
        differing, lines = near.pop(version), sum(content.total() for content in count_all(stage).values())
        if differing > lines * 0.6:
            raise FastprojError(
                f"{root} does not look like a rendering of {found.recorded}: {differing} of {lines} lines differ from "
                "the nearest; pass its template with --template, or its answers as options"
            )
        if not dry_run:
            with scratch_folder(root, "adopt") as beside:  # on the same file system, so that it can be renamed
                os.replace(shutil.copy(stage / ANSWERS_FILE, beside), root / ANSWERS_FILE)
        rendered = linked.without_copiers(linked.read_answers(stage))
        answers = {key: (value, search.sources.get(key, "default")) for key, value in rendered.items()}
        return Adopted(root, found.recorded, version, differing, lines, answers, near, not dry_run)


def _project_name(root: Path) -> str:
    """Return the name in pyproject.toml, of the only package, or of the folder."""
    packages = [file.parent.name for file in root.glob("src/*/__init__.py")]
    with suppress(OSError, ValueError, KeyError, TypeError):
        name = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
        if not packages or package_of(name) in packages:
            return str(name)
    return packages[0] if len(packages) == 1 else root.name


@dataclass
class _Search:
    """Renders the template with different answers and compares the results with a project."""

    found: Releases
    root: Path
    work: Path
    questions: dict[str, Any]
    known: dict[str, Any]
    """The answers; None for the default."""
    sources: dict[str, str]
    """Where they come from, if not from the template's defaults."""
    rendered: dict[str, Path] = field(default_factory=dict)

    def infer(self) -> None:
        """Find the unknown answers: texts and numbers in the files, then choices, each the nearest."""
        asked = {key: entry for key, entry in self.questions.items() if entry.get("when") is not False}
        unknown = {key: entry for key, entry in asked.items() if key not in self.known}
        for key, entry in unknown.items():
            if entry.get("multiselect"):  # all, so that every file is rendered in which a text or number may appear
                self.known[key] = self._together(key, choices(self.questions, key)[:-1])
        for key, entry in sorted(unknown.items(), key=lambda it: "choices" in it[1]):
            for values, otherwise in self._candidates(key, entry):
                near = self.distances({i: (self.found.newest, self.known | {key: it}) for i, it in enumerate(values)})
                differ = len(set(near.values())) > 1
                self.known[key] = values[min(near, key=near.__getitem__)] if differ else otherwise
                if differ or otherwise is not None:
                    self.sources[key] = "nearest" if "choices" in entry else "from the files"

    def _together(self, key: str, offered: list[str]) -> list[str]:
        """Return the choices that can be rendered together: all, or those that can be rendered alone, or none."""
        if self._renders({key: offered}):
            return offered
        alone = [it for it in offered if self._renders({key: [it]})]
        return alone if self._renders({key: alone}) else []

    def _renders(self, answers: dict[str, Any]) -> bool:
        with suppress(FastprojError):
            return self.render(self.found.newest, self.known | answers).is_dir()
        return False

    def _candidates(self, key: str, entry: dict[str, Any]) -> Iterator[tuple[list[Any], Any]]:
        """Yield answers to compare, and the one to take if they are equally near; None is the default."""
        offered = [True, False] if entry.get("type") == "bool" else choices(self.questions, key)
        if entry.get("multiselect"):
            for choice in offered[:-1]:
                without = [it for it in self.known[key] if it != choice]
                yield [[*without, choice], without], without
        elif offered:
            yield offered, None
        elif (marker := _MARKERS.get(entry.get("type", "str"))) and (seen := self._seen(key, marker)):
            yield [*seen, None], seen[0]  # a file may contain 1 where the answer is 0, the default, for example

    def _seen(self, key: str, marker: str | int) -> list[Any]:
        """Return what the project's lines contain most often where a rendering has this answer."""
        seen = Counter[str]()
        mark, any_answer = re.escape(str(marker)), r"(\d+)" if isinstance(marker, int) else "(.+)"
        with suppress(FastprojError):  # the marker is not allowed as an answer
            for path, lines in count_all(self.render(self.found.newest, self.known | {key: marker})).items():
                ours = "\n".join(count_lines(self.root / path))
                for line in map(re.escape, lines):
                    if line.count(mark) == 1 and line.strip() != mark:
                        seen.update(re.findall(f"(?m)^{line.replace(mark, any_answer)}$", ours))
        return [type(marker)(text) for text, _ in seen.most_common(3)]

    def distances(self, candidates: dict[Any, tuple[str, dict[str, Any]]]) -> dict[Any, int]:
        """Return how many lines of each allowed candidate differ, in the files that any of them has."""
        lines: dict[Any, dict[str, Counter[str]]] = {}
        for key, candidate in candidates.items():
            with suppress(FastprojError):
                lines[key] = count_all(self.render(*candidate))
        ours = {path: count_lines(self.root / path) for found in lines.values() for path in found}
        return {
            key: sum(difference(found.get(path, Counter()), content) for path, content in ours.items())
            for key, found in lines.items()
        }

    def render(self, tag: str, answers: dict[str, Any]) -> Path:
        """Render a version and return its folder; unknown answers are the defaults.

        Raises:
            FastprojError: an answer is not allowed; the template is broken.
        """
        known = {key: value for key, value in sorted(answers.items()) if value is not None}
        stage = self.rendered.get(f"{tag} {known}")
        if stage is None:
            stage = Path(tempfile.mkdtemp(dir=self.work)) / "project"
            self.found.render(tag, stage, known)
            self.rendered[f"{tag} {known}"] = stage
        return stage
