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

from . import linked, names, options, releases
from .errors import FastprojError
from .project import ANSWERS_FILE
from .releases import Releases
from .rendering import workshop

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
    with workshop(Path(tempfile.gettempdir()), "adopt") as work:
        found = releases.of(location if isinstance(location, str) else DEFAULT_TEMPLATE, work)
        search = _Search(found, root, work, found.questions(found.newest, work) or {})
        known = given | options.named(data, search.asked or None)
        options.check(given, options.named(data, search.asked or None), search.asked)
        sources = dict.fromkeys(known, "given")
        for key, value in linked.answers_of(root).items() if os.path.lexists(file) else ():
            if key not in known and key in search.asked:
                known[key], sources[key] = value, f"as {ANSWERS_FILE} says"
        if "project_name" not in known:
            known["project_name"], sources["project_name"] = _name(root), "from the files"
        search.open_questions(known, sources)
        search.choices(known, sources)
        distances = {tag: search.distance(tag, known) for tag in reversed(found.tags)}
        reached = {tag: near for tag, near in distances.items() if near is not None}
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
            shutil.copyfile(stage / ANSWERS_FILE, partial)
            os.replace(partial, file)
        del reached[version]
        differing = distances[version] or 0
        return Adopted(root, found.recorded, version, differing, lines, answers, reached, not dry_run)


def _name(root: Path) -> str:
    """Return the name in pyproject.toml, or that of the only package or of the folder."""
    try:
        declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        declared = None
    packages = [file.parent.name for file in root.glob("src/*/__init__.py")]
    if isinstance(declared, str) and (not packages or names.package_of(declared) in packages):
        return declared
    return packages[0] if len(packages) == 1 else root.name


class _Search:
    """Renders the template with answers, and measures how near a project is to that."""

    def __init__(self, found: Releases, root: Path, work: Path, asked: dict[str, Any]) -> None:
        self.found, self.root, self.work, self.number = found, root, work, 0
        self.asked = {key: entry for key, entry in asked.items() if entry.get("when") is not False}

    def render(self, tag: str, answers: dict[str, Any]) -> Path:
        """Return the folder of a rendering; what is not answered takes its default."""
        self.number += 1
        stage = self.work / f"try{self.number}" / "project"
        self.found.render(tag, stage, self.work, answers)
        return stage

    def distance(self, tag: str, answers: dict[str, Any]) -> int | None:
        """Return how many lines differ; None where the answers do not fit."""
        try:
            stage = self.render(tag, answers)
        except FastprojError:
            return None
        differing = 0
        for path, lines in _lines_in(stage).items():
            mine = Counter(_lines(self.root / path))
            differing += max((Counter(lines) - mine).total(), (mine - Counter(lines)).total())
        shutil.rmtree(stage.parent)
        return differing

    def open_questions(self, known: dict[str, Any], sources: dict[str, str]) -> None:
        """Read numbers and texts off the files."""
        telling: dict[str, Any] = {}
        numbers = iter(_TELLING_NUMBERS)
        for key, entry in self.asked.items():
            if key in known or "choices" in entry or key == "project_name":
                continue
            kind = entry.get("type", "str")
            value = (
                next(numbers, None) if kind == "int" else f"{_TELLING_TEXT}{len(telling)}" if kind == "str" else None
            )
            if value is not None and self.distance(self.found.newest, known | {key: value}) is not None:
                telling[key] = value
        # All that can be chosen together is, so that every file is there in which a value may appear.
        everything = {
            key: [choice for choice in options.choices(self.asked, key) if choice != "none"]
            for key, entry in self.asked.items()
            if entry.get("multiselect") and key not in known
        }
        try:
            stage = self.render(self.found.newest, everything | known | telling)
        except FastprojError:
            return
        for key, value in telling.items():
            seen = [text for text, _ in Counter(_seen(stage, self.root, str(value))).most_common(3)]
            found = [int(text) for text in seen] if isinstance(value, int) else seen
            # The file may say 1 where the answer is 0, say: what is read must also be nearer than the default.
            near = {one: self.distance(self.found.newest, known | {key: one}) for one in found}
            fitting = {one: distance for one, distance in near.items() if distance is not None}
            default = self.distance(self.found.newest, known)
            best = min(fitting, key=lambda one: fitting[one], default=None)
            if best is not None and (default is None or fitting[best] < default):
                known[key], sources[key] = best, "from the files"
            elif best is not None:
                sources[key] = "from the files"

    def choices(self, known: dict[str, Any], sources: dict[str, str]) -> None:
        """Choose what comes nearest, one question after the other."""
        for key, entry in self.asked.items():
            if key in known or "choices" not in entry:
                continue
            if entry.get("multiselect"):
                self._several(key, known, sources)
                continue
            near = {
                one: self.distance(self.found.newest, known | {key: one}) for one in options.choices(self.asked, key)
            }
            fitting = {one: distance for one, distance in near.items() if distance is not None}
            if len(set(fitting.values())) > 1:
                known[key] = min(fitting, key=lambda one: fitting[one])
                sources[key] = "nearest"

    def _several(self, key: str, known: dict[str, Any], sources: dict[str, str]) -> None:
        chosen: list[str] = []
        for one in options.choices(self.asked, key)[:-1]:
            without = self.distance(self.found.newest, known | {key: chosen})
            with_it = self.distance(self.found.newest, known | {key: [*chosen, one]})
            if with_it is not None and (without is None or with_it < without):
                chosen.append(one)
        known[key], sources[key] = chosen, "nearest"


def _seen(stage: Path, root: Path, value: str) -> Iterator[str]:
    """Yield what stands in the project's lines where a rendering has the telling value."""
    for path, lines in _lines_in(stage).items():
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
