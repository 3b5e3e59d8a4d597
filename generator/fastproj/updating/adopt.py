"""Link a repository to the release that it was rendered from, where its answers file is lost or says too little.

Nothing of the template is known here but its questions. What an open question was answered with is read off the files:
a rendering with a telling value shows the lines in which it appears. A choice is the one whose rendering is nearest.
"""

import os
import re
import shutil
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE, choices, combine, package_of
from ..shared.errors import FastprojError
from ..shared.scratch import scratch_folder
from . import linked, releases
from .releases import Releases

DEFAULT_TEMPLATE = "~/.fastproj/template.bundle"
# Values that no project has by chance; for integers in the order in which a template is likely to allow them.
_TELLING_TEXT = "Qztelling Valuex"
_TELLING_NUMBERS = (61, 53, 47, 43)


@dataclass(frozen=True)
class Adopted:
    """What was found out, and how sure it is."""

    root: Path
    template: str
    version: str
    differing: int
    lines: int
    """Lines that a rendering of this version with these answers has, and how many of them differ."""
    answers: dict[str, tuple[Any, str]]
    """Each answer, and where it is from."""
    others: dict[str, int]
    """Differing lines of the other versions."""
    written: bool


def adopt(where: Path, template: str | None, given: dict[str, Any], data: list[str], dry_run: bool) -> Adopted:
    """Find the nearest release and answers, and write the answers file; nothing else is changed.

    Raises:
        FastprojError: it is linked already, or was not rendered from this template.
    """
    root = where.absolute()
    if not os.path.isdir(root):
        raise FastprojError(f"{where} is no folder: name the project's")
    file = root / ANSWERS_FILE
    recorded = linked.answers_in(file) if os.path.lexists(file) else {}
    if template is None and isinstance(recorded.get("_src_path"), str) and isinstance(recorded.get("_commit"), str):
        raise FastprojError(f"{file} links the project already: fastproj update brings it up to date")
    location = template or recorded.get("_src_path")
    with scratch_folder(Path(tempfile.gettempdir()), "adopt") as work:
        found = releases.of(location if isinstance(location, str) else DEFAULT_TEMPLATE, work)
        search = _Search(found, root, work, found.questions(found.newest, work) or {})
        known = combine(given, data, search.asked or None)
        sources = dict.fromkeys(known, "given")
        for key, value in linked.answers_of(root).items() if os.path.lexists(file) else ():
            if key not in known and key in search.asked:
                known[key], sources[key] = value, f"as {ANSWERS_FILE} says"
        if "project_name" not in known:
            known["project_name"], sources["project_name"] = _name(root), "from the files"
        search.open_questions(known, sources)
        search.choices(known, sources)
        reached = search.distances({tag: (tag, known) for tag in reversed(found.tags)})
        if not reached:
            search.render(found.newest, known)  # says why
        version = min(reached, key=lambda tag: reached[tag])
        stage = search.render(version, known)
        lines = sum(len(content) for content in _lines_in(stage).values())
        if reached[version] > lines * 0.6:
            raise FastprojError(
                f"{root} does not look like a rendering of {found.recorded}: {reached[version]} of {lines} lines "
                "differ from the nearest; name its template with --template, or its answers as options"
            )
        answers = {key: (value, sources.get(key, "default")) for key, value in linked.answers_of(stage).items()}
        if not dry_run:
            partial = file.with_name(f"{ANSWERS_FILE}.fastproj")
            try:
                shutil.copyfile(stage / ANSWERS_FILE, partial)
                os.replace(partial, file)
            finally:
                partial.unlink(missing_ok=True)
        differing = reached.pop(version)
        return Adopted(root, found.recorded, version, differing, lines, answers, reached, not dry_run)


def _name(root: Path) -> str:
    """Return the name in pyproject.toml, or that of the only package or of the folder."""
    try:
        declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        declared = None
    packages = [file.parent.name for file in root.glob("src/*/__init__.py")]
    if isinstance(declared, str) and (not packages or package_of(declared) in packages):
        return declared
    return packages[0] if len(packages) == 1 else root.name


class _Search:
    """Renders the template with answers, and measures how near a project is to that."""

    def __init__(self, found: Releases, root: Path, work: Path, table: dict[str, Any]) -> None:
        self.found, self.root, self.work, self.table = found, root, work, table
        self.asked = {key: entry for key, entry in table.items() if entry.get("when") is not False}
        self.rendered: dict[str, dict[str, list[str]] | None] = {}
        # Chosen together while numbers are read, so that every file is there in which one may appear.
        self.everything = {
            key: [choice for choice in choices(table, key) if choice != "none"]
            for key, entry in self.asked.items()
            if entry.get("multiselect")
        }

    def render(self, tag: str, answers: dict[str, Any]) -> Path:
        """Return the folder of a rendering; what is not answered takes its default."""
        stage = self.work / f"try{len(self.rendered)}" / "project"
        self.found.render(tag, stage, self.work, answers)
        return stage

    def lines(self, tag: str, answers: dict[str, Any]) -> dict[str, list[str]] | None:
        """Return the lines of each file of a rendering; None where the answers do not fit."""
        key = repr((tag, sorted(answers.items())))
        if key not in self.rendered:
            try:
                self.rendered[key] = None
                stage = self.render(tag, answers)
                self.rendered[key] = _lines_in(stage)
                shutil.rmtree(stage.parent)
            except FastprojError:
                pass
        return self.rendered[key]

    def distances(self, candidates: dict[Any, tuple[str, dict[str, Any]]]) -> dict[Any, int]:
        """Return, for each candidate that fits, how many lines differ, of the files that any of them has."""
        lines = {key: self.lines(*candidate) for key, candidate in candidates.items()}
        fitting = {key: found for key, found in lines.items() if found is not None}
        mine = {path: Counter(_lines(self.root / path)) for found in fitting.values() for path in found}
        return {
            key: sum(_differing(Counter(found.get(path, [])), content) for path, content in mine.items())
            for key, found in fitting.items()
        }

    def of_newest(self, known: dict[str, Any], key: str, values: list[Any]) -> dict[Any, int]:
        """Return the distances with other answers to one question."""
        return self.distances({str(value): (self.found.newest, known | {key: value}) for value in values})

    def open_questions(self, known: dict[str, Any], sources: dict[str, str]) -> None:
        """Read numbers and texts off the files."""
        telling: dict[str, Any] = {}
        numbers = iter(_TELLING_NUMBERS)
        everything = {key: value for key, value in self.everything.items() if key not in known}
        for key, entry in self.asked.items():
            if key in known or "choices" in entry or key == "project_name":
                continue
            kind = entry.get("type", "str")
            value = (
                next(numbers, None) if kind == "int" else f"{_TELLING_TEXT}{len(telling)}" if kind == "str" else None
            )
            if value is not None and self.lines(self.found.newest, everything | known | {key: value}) is not None:
                telling[key] = value
        rendering = self.lines(self.found.newest, everything | known | telling) or {}
        for key, value in telling.items():
            seen = [text for text, _ in Counter(_seen(rendering, self.root, str(value))).most_common(3)]
            if not seen:
                continue
            sources[key] = "from the files"
            # A file may say 1 where the answer is 0, say: what is read must also be nearer than the default.
            values = [int(text) for text in seen] if isinstance(value, int) else seen
            candidates: dict[Any, dict[str, Any]] = {"": known} | {one: known | {key: one} for one in values}
            near = self.distances({one: (self.found.newest, everything | its) for one, its in candidates.items()})
            best = min(near, key=lambda one: near[one], default="")
            if best != "":
                known[key] = best

    def choices(self, known: dict[str, Any], sources: dict[str, str]) -> None:
        """Choose what comes nearest, one question after the other."""
        for key, entry in self.asked.items():
            if key in known or "choices" not in entry:
                continue
            offered = choices(self.table, key)
            if entry.get("multiselect"):
                known[key], sources[key] = self._several(key, known, offered[:-1]), "nearest"
                continue
            if len(offered) == 1:
                known[key], sources[key] = offered[0], "the only one"
                continue
            near = self.of_newest(known, key, offered)
            if len(set(near.values())) > 1:
                known[key], sources[key] = min(near, key=lambda one: near[one]), "nearest"

    def _several(self, key: str, known: dict[str, Any], offered: list[str]) -> list[str]:
        chosen: list[str] = []
        for one in offered:
            near = self.of_newest(known, key, [chosen, [*chosen, one]])
            if near.get(str([*chosen, one]), 1) < near.get(str(chosen), 0):
                chosen.append(one)
        return chosen


def _differing(theirs: Counter[str], mine: Counter[str]) -> int:
    """Return how many lines of two versions of a file have no partner."""
    return max((theirs - mine).total(), (mine - theirs).total())


def _seen(rendering: dict[str, list[str]], root: Path, value: str) -> Iterator[str]:
    """Yield what stands in the project's lines where a rendering has the telling value."""
    for path, lines in rendering.items():
        telling = [line for line in lines if line.count(value) == 1 and line.strip() != value]
        for line in telling:
            before, _, after = line.partition(value)
            open_part = r"(\d+)" if value.isdecimal() else r"(.+)"
            pattern = re.compile(f"{re.escape(before)}{open_part}{re.escape(after)}")
            for mine in _lines(root / path):
                found = pattern.fullmatch(mine)
                if found:
                    yield found[1]


def _lines_in(folder: Path) -> dict[str, list[str]]:
    """Return the lines of each rendered file; the answers file tells nothing here."""
    return {
        str(file.relative_to(folder)): _lines(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != ANSWERS_FILE
    }


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
