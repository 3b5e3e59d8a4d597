"""A rendered project: its folder, and what its answers file records."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from ..shared.yaml_file import read_yaml
from .repository import Repository, open_at


@dataclass(frozen=True)
class Linked:
    """A project and the template version that it was rendered from."""

    root: Path
    repository: Repository
    location: str
    """The template's, as recorded."""
    version: str
    """The tag of the template."""
    answers: dict[str, Any]

    @property
    def answers_path(self) -> str:
        """The path of the answers file in the repository."""
        return f"{self.repository.prefix}{ANSWERS_FILE}"


def root_of(where: Path) -> Path | None:
    """Return the nearest folder, from there upwards, with an answers file; None if there is none.

    Raises:
        FastprojError: it is not a folder.
    """
    start = Path(os.path.realpath(where))  # the parent of a link is not what its path says
    if not os.path.isdir(start):
        raise FastprojError(f"{where} is not a folder: pass the project's folder")
    return next((folder for folder in (start, *start.parents) if os.path.lexists(folder / ANSWERS_FILE)), None)


def read(where: Path) -> Linked:
    """Return the project of a folder: the nearest one, from there upwards, with an answers file.

    Raises:
        FastprojError: there is none, its answers file lacks the template or version, or it is in no git repository.
    """
    root = root_of(where)
    if root is None:
        raise FastprojError(
            f"there is no {ANSWERS_FILE} in {where} or its parents: go to a project that fastproj rendered, or use "
            "`fastproj adopt` if the file was lost"
        )
    recorded = read_answers(root)
    for key, what in (("_src_path", "template"), ("_commit", "version")):
        if not isinstance(recorded.get(key), str) or not recorded[key] or "\0" in recorded[key]:
            raise FastprojError(f"{root / ANSWERS_FILE} does not record the {what} ({key}): use `fastproj adopt`")
    return Linked(root, open_at(root), recorded["_src_path"], recorded["_commit"], without_copiers(recorded))


def read_answers(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's answers file; empty if it has none.

    Raises:
        FastprojError: it cannot be read, or holds no answers.
    """
    from yaml import YAMLError

    file, way_out = folder / ANSWERS_FILE, f"restore it with `git checkout HEAD -- {ANSWERS_FILE}`"
    if not os.path.lexists(file):
        return {}
    try:
        recorded = read_yaml(file)
    except (OSError, ValueError, YAMLError) as error:
        raise FastprojError(f"cannot read {file} ({' '.join(str(error).split())}): {way_out}") from error
    if not isinstance(recorded, dict):
        raise FastprojError(f"{file} holds no answers: {way_out}")
    return recorded


def with_comments(rendered: str, own: str, old: str) -> str:
    """Return a rendered answers file with the comments that the user added to the own one.

    A comment on a line of its own stays above the same answer. `old` is the former rendering, whose comments are not
    the user's.
    """
    theirs, pending = {*rendered.splitlines(), *old.splitlines()}, list[str]()
    above: dict[str, list[str]] = {}
    behind: dict[str, str] = {}
    for line in own.splitlines():
        content, comment = _split_comment(line)
        if not content and comment and line not in theirs:
            pending.append(line)
        elif content:
            above.setdefault(_answer_of(content), []).extend(pending)
            behind |= {_answer_of(content): comment} if comment and line not in theirs else {}
            pending = []
    lines: list[str] = []
    for line in rendered.splitlines():
        lines += [*above.pop(_answer_of(line), []), line + behind.pop(_answer_of(line), "")]
    left = [line for lines_above in above.values() for line in lines_above]
    return "\n".join([*lines, *left, *(it.strip() for it in behind.values()), *pending, ""])


def _split_comment(line: str) -> tuple[str, str]:
    """Return a line of YAML without its comment, and the comment with the space before it."""
    import yaml

    for found in re.finditer(r"(?:^|\s+)#", line):
        content = line[: found.start()]
        with suppress(yaml.YAMLError):
            if yaml.safe_load(content) == yaml.safe_load(line):
                return content.rstrip(), line[len(content.rstrip()) :]
    return line.rstrip(), ""


def _answer_of(line: str) -> str:
    """Return the name of the answer in a line, or a line of a list as it is."""
    found = re.match(r"(\w+):", line)
    return found[1] if found else line.rstrip()


def without_copiers(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of an answers file, without copier's own entries."""
    return {str(key): value for key, value in recorded.items() if not str(key).startswith("_")}
