"""Settings of git that execute code, as functions of the project folder.

`home` beside it is the user's, with a `.gitconfig`; code that git executes leaves a file `hacked`
beside it.
"""

import os
import shutil
from pathlib import Path

from edits import edited_another_function, renamed
from updating import commit, git

COMMANDS = (
    "fsmonitor",
    "pager",
    "editor",
    "sshCommand",
    "askPass",
    "alternateRefsCommand",
    "gitProxy",
)
HOOKS = (
    "pre-commit",
    "post-checkout",
    "post-index-change",
    "reference-transaction",
    "pre-auto-gc",
    "post-merge",
)


def hacker(project: Path) -> Path:
    """Write a program that leaves a trace."""
    script = project.parent / "home/hacker"
    script.write_text(f"#!/bin/sh\necho $0 $@ >> {project.parent / 'hacked'}\nexit 1\n")
    script.chmod(0o755)
    return script


def set_globally(project: Path, text: str) -> None:
    with (project.parent / "home/.gitconfig").open("a") as file:
        file.write(text)


def fsmonitor_and_hooks(project: Path) -> None:
    script = hacker(project)
    renamed(project)
    commit(project)
    for key in COMMANDS:
        git(project, "config", f"core.{key}", str(script))
    for name in HOOKS:
        (project / ".git/hooks").mkdir(exist_ok=True)
        shutil.copy(script, project / f".git/hooks/{name}")


def global_hooks(project: Path) -> None:
    script = hacker(project)
    edited_another_function(project)
    commit(project)
    for name in HOOKS:
        (project.parent / "home/hooks").mkdir(exist_ok=True)
        shutil.copy(script, project.parent / f"home/hooks/{name}")
    set_globally(project, f"[core]\nhooksPath = {script.parent / 'hooks'}\nfsmonitor = {script}\n")
    set_globally(
        project,
        f"[init]\ntemplateDir = {project.parent / 'home'}\n"
        f"[uploadpack]\npackObjectsHook = {script}\n",
    )


def include_if(project: Path) -> None:
    script = hacker(project)
    edited_another_function(project)
    commit(project)
    (project.parent / "home/more").write_text(
        f"[core]\nfsmonitor = {script}\npager = {script}\nhooksPath = /\n"
    )
    set_globally(project, '[includeIf "gitdir:**"]\npath = more\n')


def diff_programs(project: Path) -> None:
    """External diff, textconv and merge driver, which no command of an update runs."""
    script = hacker(project)
    edited_another_function(project)
    (project / ".git/info").mkdir(exist_ok=True)
    (project / ".git/info/attributes").write_text("* diff=evil\n")
    commit(project)
    for key in (
        "diff.external",
        "diff.evil.textconv",
        "diff.evil.command",
        "gpg.program",
        "interactive.diffFilter",
    ):
        git(project, "config", key, str(script))
    git(project, "config", "commit.gpgSign", "true")
    git(project, "config", "log.showSignature", "true")
    programs = "".join(f"GIT_{name}={script}\n" for name in ("EXTERNAL_DIFF", "PAGER", "EDITOR"))
    with (project.parent / "home/environment").open("a") as file:
        file.write(programs)


def filter_and_driver(project: Path) -> None:
    """Configured, but named by no attribute of the project."""
    script = hacker(project)
    edited_another_function(project)
    commit(project)
    for key in (
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.evil.process",
        "merge.evil.driver",
    ):
        git(project, "config", key, str(script))


def filter_of_the_user(project: Path) -> None:
    """A filter that the project uses, as git-lfs does."""
    git(project, "config", "filter.up.clean", "tr a-z A-Z")
    git(project, "config", "filter.up.smudge", "tr A-Z a-z")
    (project / ".gitattributes").write_text("*.up filter=up\n")
    (project / "mine.up").write_text("mine\n")
    edited_another_function(project)
    commit(project)


def hostile_environment(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    (project.parent / "home/environment").write_text(
        "GIT_DIR=/nowhere\nGIT_INDEX_FILE=/nowhere\nGIT_OBJECT_DIRECTORY=/x\n"
        "GIT_WORK_TREE=/tmp\nGIT_CEILING_DIRECTORIES=/\nGIT_NAMESPACE=x\nGIT_CONFIG_COUNT=1\n"
        f"GIT_CONFIG_KEY_0=core.fsmonitor\nGIT_CONFIG_VALUE_0={hacker(project)}\n"
    )


def broken_gitconfig(project: Path) -> None:
    set_globally(project, "[core\n")


def read_only_files(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    for file in (project / "src/proj").glob("*.py"):
        file.chmod(0o444)


def corrupt_home(project: Path) -> None:
    for folder in ("home/.fastproj", "home/.local/share/fastproj"):
        (project.parent / folder).mkdir(parents=True)
        (project.parent / folder / "template.bundle").write_bytes(os.urandom(100))
