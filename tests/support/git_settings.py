"""Kinds of repositories and settings of git that an update has to cope with, as functions of the project folder.

Each runs beside `home`, whose `.gitconfig` is the user's. HOSTILE ones touch `hacked` beside it when git executes them.
"""

import os
import shutil
from pathlib import Path

from edits import State, edited_another_function, renamed
from updating import commit, git

COMMANDS = ("fsmonitor", "pager", "editor", "sshCommand", "askPass", "alternateRefsCommand", "gitProxy")
HOOKS = ("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "post-merge")


def hacker(project: Path) -> Path:
    """Write a program that leaves a trace."""
    script = project.parent / "home/hacker"
    script.write_text(f"#!/bin/sh\necho $0 $@ >> {project.parent / 'hacked'}\nexit 1\n")
    script.chmod(0o755)
    return script


def set_globally(project: Path, text: str) -> None:
    with (project.parent / "home/.gitconfig").open("a") as file:
        file.write(text)


def configured(name: str, *settings: str) -> State:
    """Return the state with settings of the form `key=value` in the repository, and an edit."""

    def state(project: Path) -> None:
        for setting in settings:
            git(project, "config", *setting.split("=", 1))
        edited_another_function(project)
        commit(project)

    state.__name__ = name
    return state


def with_attributes(name: str, text: str) -> State:
    """Return the state with attributes, applied to all files, and an edit."""

    def state(project: Path) -> None:
        (project / ".gitattributes").write_text(text)
        edited_another_function(project)
        git(project, "add", "--renormalize", "-A")
        commit(project)
        git(project, "rm", "-q", "--cached", "-r", ".")
        git(project, "reset", "-q", "--hard")

    state.__name__ = name
    return state


def autocrlf(project: Path) -> None:
    git(project, "config", "core.autocrlf", "true")
    edited_another_function(project)
    commit(project)
    git(project, "rm", "-q", "--cached", "-r", ".")
    git(project, "reset", "-q", "--hard")


def sparse_index(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    git(project, "sparse-checkout", "set", "--cone", "--sparse-index", "src")


def split_index(project: Path) -> None:
    git(project, "update-index", "--split-index")
    edited_another_function(project)
    commit(project)


def untracked_cache(project: Path) -> None:
    git(project, "update-index", "--untracked-cache", "--index-version", "4")
    edited_another_function(project)
    commit(project)
    (project / "scratch.txt").write_text("mine\n")


def sha256(project: Path) -> None:
    shutil.rmtree(project / ".git")
    git(project, "init", "-q", "--object-format=sha256")
    edited_another_function(project)
    commit(project)


def linked_work_tree(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    project.rename(project.parent / "main")
    git(project.parent / "main", "worktree", "add", "-q", str(project))


def separate_git_dir(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    git(project, "init", "-q", "--separate-git-dir", str(project.parent / "elsewhere.git"))


def in_a_subfolder(project: Path) -> None:
    """The project folder is a link to where it is in the larger repository."""
    top = project.parent / "large"
    (top / "other").mkdir(parents=True)
    (top / "other/file.txt").write_text("mine\n")
    shutil.rmtree(project / ".git")
    project.rename(top / "proj")
    git(top, "init", "-q")
    commit(top)
    edited_another_function(top / "proj")
    commit(top)
    project.symlink_to(top / "proj")
    (top / "other/file.txt").write_text("mine, and dirty\n")


def detached_head(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    git(project, "checkout", "-q", "--detach")


def shallow(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    project.rename(project.parent / "deep")
    git(project.parent, "clone", "-q", "--depth=1", f"file://{project.parent / 'deep'}", str(project))


def corrupt_index(project: Path) -> None:
    (project / ".git/index").write_bytes(b"DIRC broken")


def missing_object(project: Path) -> None:
    oid = git(project, "rev-parse", "HEAD:README.md")
    (project / f".git/objects/{oid[:2]}/{oid[2:]}").unlink()


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
        project, f"[init]\ntemplateDir = {project.parent / 'home'}\n[uploadpack]\npackObjectsHook = {script}\n"
    )


def include_if(project: Path) -> None:
    script = hacker(project)
    edited_another_function(project)
    commit(project)
    (project.parent / "home/more").write_text(f"[core]\nfsmonitor = {script}\npager = {script}\nhooksPath = /\n")
    set_globally(project, '[includeIf "gitdir:**"]\npath = more\n')


def diff_programs(project: Path) -> None:
    """External diff, textconv and merge driver: of the user, but of no command that an update runs."""
    script = hacker(project)
    edited_another_function(project)
    (project / ".git/info").mkdir(exist_ok=True)
    (project / ".git/info/attributes").write_text("* diff=evil\n")
    commit(project)
    for key in ("diff.external", "diff.evil.textconv", "diff.evil.command", "gpg.program", "interactive.diffFilter"):
        git(project, "config", key, str(script))
    git(project, "config", "commit.gpgSign", "true")
    git(project, "config", "log.showSignature", "true")
    for name in ("EXTERNAL_DIFF", "PAGER", "EDITOR"):
        (project.parent / "home/environment").open("a").write(f"GIT_{name}={script}\n")


def filter_and_driver(project: Path) -> None:
    """Configured, but named by no attribute of the project."""
    script = hacker(project)
    edited_another_function(project)
    commit(project)
    for key in ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "merge.evil.driver"):
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
        "GIT_DIR=/nowhere\nGIT_INDEX_FILE=/nowhere\nGIT_OBJECT_DIRECTORY=/x\nGIT_WORK_TREE=/tmp\nGIT_CEILING_DIRECTORIES=/\n"
        f"GIT_NAMESPACE=x\nGIT_CONFIG_COUNT=1\nGIT_CONFIG_KEY_0=core.fsmonitor\nGIT_CONFIG_VALUE_0={hacker(project)}\n"
    )


def broken_gitconfig(project: Path) -> None:
    set_globally(project, "[core\n")


def read_only_files(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    for file in (project / "src/proj").glob("*.py"):
        file.chmod(0o444)


def read_only_folder(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    (project / "src/proj").chmod(0o555)


def read_only_git(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    (project / ".git/objects").chmod(0o555)


def read_only_home(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    (project.parent / "home").chmod(0o555)


def corrupt_home(project: Path) -> None:
    (project.parent / "home/.fastproj").mkdir()
    (project.parent / "home/.fastproj/template.bundle").write_bytes(os.urandom(100))


WORKING: list[State] = [
    autocrlf,
    configured("autocrlf_input", "core.autocrlf=input"),
    configured("no_file_mode", "core.fileMode=false"),
    configured("no_symlinks", "core.symlinks=false"),
    configured("ignore_case", "core.ignoreCase=true", "core.precomposeUnicode=true", "core.quotePath=true"),
    configured("unsafe_crlf", "core.safecrlf=true", "core.eol=crlf"),
    configured("merge_settings", "merge.conflictStyle=diff3", "merge.renames=false", "merge.directoryRenames=true"),
    configured("status_settings", "status.showUntrackedFiles=no", "status.relativePaths=true", "status.branch=true"),
    configured(
        "diff_settings", "diff.noprefix=true", "diff.renames=copies", "color.ui=always", "diff.ignoreSubmodules=all"
    ),
    configured("many_files", "feature.manyFiles=true", "feature.experimental=true", "fetch.writeCommitGraph=true"),
    configured("no_protocol", "protocol.allow=never", "safe.bareRepository=explicit"),
    configured("worktree_config", "extensions.worktreeConfig=true", "core.logAllRefUpdates=always"),
    with_attributes("eol_crlf", "* text eol=crlf\n*.bin binary\n"),
    with_attributes("all_binary", "* binary\n"),
    with_attributes("union", "* merge=union\n"),
    with_attributes("ident", "*.py ident\n*.yaml export-ignore\n"),
    with_attributes("encoding", "README.md working-tree-encoding=UTF-16\n"),
    split_index,
    untracked_cache,
    sha256,
    linked_work_tree,
    separate_git_dir,
    in_a_subfolder,
    detached_head,
    shallow,
    fsmonitor_and_hooks,
    global_hooks,
    include_if,
    diff_programs,
    filter_and_driver,
    filter_of_the_user,
    hostile_environment,
    read_only_files,
    corrupt_home,
]
"""An update succeeds."""
REFUSING: list[State] = [sparse_index, corrupt_index, missing_object, broken_gitconfig]
FOR_OTHERS: list[State] = [read_only_files, read_only_folder, read_only_git, read_only_home]
"""For a user who is not root."""
CONVERTED = {"autocrlf", "eol_crlf", "ident", "encoding", "own_attributes", "filter_of_the_user", "unsafe_crlf"}
"""The files in the work tree differ from those in the index."""
