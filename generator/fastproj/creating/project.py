"""Create a project: completely, or not at all."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import git
from ..errors import FastprojError
from ..scratch import scratch_folder
from ..template.answers import Answers, combine
from ..template.clone import open_template, questions_in
from ..template.rendering import copy, preload
from . import names
from .hardware import Machine

_SETTINGS = {
    # The user's hooks, signatures and ignored files apply from the second commit on.
    "core.excludesFile": os.devnull,
    "commit.gpgSign": "false",
    "user.useConfigOnly": "true",
    "maintenance.auto": "false",
}


@dataclass(frozen=True)
class Project:
    """A project that was created."""

    path: Path
    files: int
    answers: Answers
    """The recorded answers, without copier's own entries."""
    git: str
    """Describes its git repository, or why it has none."""


def destination(name: str, output: Path) -> Path:
    """Return the project's folder, after checking that it can be created."""
    names.check(name)
    target = output / name
    # unlike Path.exists, also False if permissions forbid a look
    if os.path.lexists(output) and not os.path.isdir(output):
        raise FastprojError(f"--output {output} is not a folder: choose another")
    if os.path.lexists(target):
        raise FastprojError(
            f"{target} exists already: choose another name, or another folder with --output"
        )
    return target


def default_answers(machine: Machine) -> Answers:
    """Return the defaults that are derived from the machine and from git's settings."""
    name = git.run(Path("/"), "config", "user.name").text.strip()
    return machine.answers() | ({"author": name} if name else {})


def create(
    target: Path,
    location: str | None,
    options: Answers,
    data: list[str],
    machine: Machine,
    accept_defaults: bool,
    can_ask: bool,
    commit: bool,
) -> Project:
    """Render a template into `target`; ask for the answers that are neither given nor accepted.

    The project is rendered into a folder next to `target` and then renamed, so `target` is never
    incomplete.
    """
    place = target.absolute()
    missing = [folder for folder in place.parents if not os.path.lexists(folder)]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(place.parent, place.name) as scratch:
            stage = scratch / "project"
            template = open_template(location, scratch)
            questions = questions_in(template.at(template.newest))
            answers = combine(options, data, questions) | {"project_name": place.name}
            defaults = default_answers(machine)
            if not accept_defaults:
                preload().join()  # two threads that import prompt_toolkit can get parts of it
                from . import prompts  # 0.1 s

                form = prompts.Form(questions, answers, defaults)
                answers = prompts.ask(form, f"Create {place.name}?", can_ask)
            rendering = copy(template, template.newest, stage, answers, defaults)
            files = sum(path.is_symlink() or path.is_file() for path in stage.rglob("*"))
            repository = _commit(stage, place) if commit else "no git repository, as requested"
            os.rename(stage, place)
    except OSError as error:
        fix = "free some space, or use another --output"
        raise FastprojError(f"cannot write {target} ({error.strerror}): {fix}") from error
    finally:
        for folder in missing:
            with suppress(OSError):  # it has the project now
                folder.rmdir()
    return Project(target, files, rendering.answers, repository)


def _commit(stage: Path, target: Path) -> str:
    """Create a git repository with one commit, and describe the outcome.

    Failing to commit is not an error.
    """
    if git.run(target.parent, "rev-parse", "--is-inside-work-tree").text.strip() == "true":
        return "no git repository of its own, as the folder is in one: git add it there"
    message = f"Render {target.name} with fastproj"
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["var", "GIT_COMMITTER_IDENT"],
        ["commit", "--quiet", "--message", message],
    ):
        done = git.run(stage, *command, settings=_SETTINGS)
        if not done.ok and command[0] == "var":
            return (
                "no first commit, as git does not know you: "
                "set user.name and user.email with git config, then commit"
            )
        if not done.ok:
            return f"no commit, as git {command[0]} failed: {done.reason}"
    return "a git repository with a first commit"
