"""Render a project: whole and in its place, or not at all."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared import git
from ..shared.errors import FastprojError
from ..shared.rendering import copy, workshop
from ..shared.source import Source
from . import names

ANSWERS_FILE = ".copier-answers.yml"


@dataclass(frozen=True)
class Rendered:
    """A project as it lies on the disk now."""

    path: Path
    files: int
    answers: dict[str, Any]
    """The recorded answers, without copier's own entries."""
    git: str
    """What became of the repository and its first commit."""


def destination(name: str, output: Path) -> Path:
    """Return where the project will be.

    Raises:
        FastprojError: the name is not allowed, something is there already, or the folder around it cannot take it.
    """
    names.check(name)
    target = output / name
    if not os.path.isdir(output):  # unlike Path.is_dir, False too where one may not look
        raise FastprojError(f"--output {output} is no folder: make it first, or choose another")
    if os.path.lexists(target):
        raise FastprojError(f"{target} exists already: choose another name, or another folder with --output")
    if not os.access(output, os.W_OK | os.X_OK):
        raise FastprojError(f"{output} cannot be written: choose another folder with --output")
    return target


def render(
    target: Path, source: Source, answers: dict[str, Any], defaults: dict[str, Any], ask: bool, commit: bool
) -> Rendered:
    """Render the template into `target`, which must not exist, asking for what is not in `answers` if `ask`.

    All work is done in a folder beside it, renamed at the end: `target` is whole or absent, whatever happens.

    Raises:
        FastprojError: the template cannot be had or is broken; an answer is not allowed; the disk is full.
    """
    shown, target = target, target.absolute()  # copier works in other folders
    try:
        with workshop(target.parent, target.name) as work:
            stage = work / "project"
            copy(work, stage, source, answers | {"project_name": target.name}, defaults, ask)
            recorded = _recorded(stage, set(answers))
            files = sum(len(found) for _, _, found in os.walk(stage))
            outcome = _commit(stage, target) if commit else "no repository, as asked"
            if os.path.lexists(target):
                raise FastprojError(f"{shown} was made by another program meanwhile: choose another name")
            os.rename(stage, target)
    except OSError as error:
        way_out = (
            "free some space, or use" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "use another"
        )
        raise FastprojError(f"cannot write {shown} ({error.strerror}): {way_out} --output") from error
    return Rendered(shown, files, recorded, outcome)


def _recorded(stage: Path, given: set[str]) -> dict[str, Any]:
    """Read the answers back; one that was given and is not among them was no question of the template."""
    import yaml

    file = stage / ANSWERS_FILE
    if not file.is_file():
        raise FastprojError(
            f"the template writes no {ANSWERS_FILE}, so its projects could not be updated: add one to it"
        )
    recorded = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(recorded, dict):
        raise FastprojError(f"the template writes a {ANSWERS_FILE} without answers: let it write _copier_answers there")
    answers = {key: value for key, value in recorded.items() if not key.startswith("_")}
    unknown = sorted(given - set(answers) - {"tensor_cores"})
    if unknown:
        raise FastprojError(f"the template asks no question {unknown[0]!r}: it asks {', '.join(answers)}")
    return answers


def _commit(stage: Path, target: Path) -> str:
    """Make a repository with one commit; whatever stands against the commit is told, and is no failure."""
    if git.run(target.parent, "rev-parse", "--is-inside-work-tree").text.strip() == "true":
        return "no repository of its own, as it lies in one: git add it there"
    # Hooks, signatures and ignored files are the user's for later; the first commit holds just what was rendered.
    plain = {"commit.gpgSign": "false", "core.excludesFile": os.devnull, "user.useConfigOnly": "true"}
    for command in (["init", "--quiet", "--initial-branch=main"], ["add", "--all"]):
        done = git.run(stage, *command, settings=plain)
        if not done.ok:
            return f"no commit, as git {command[0]} failed: {done.reason}"
    if not git.run(stage, "var", "GIT_COMMITTER_IDENT", settings=plain).ok:
        return "no first commit, as git does not know you: set user.name and user.email with git config, then commit"
    done = git.run(stage, "commit", "--quiet", "--message", f"Render {target.name} with fastproj", settings=plain)
    return "a repository with a first commit" if done.ok else f"no first commit: {done.reason}"
