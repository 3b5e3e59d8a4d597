"""Repositories and settings of git that an update copes with, as functions of the project."""

import shutil
from pathlib import Path

from edits import State, edited_another_function
from hostile_settings import (
    broken_gitconfig,
    corrupt_home,
    diff_programs,
    filter_and_driver,
    filter_of_the_user,
    fsmonitor_and_hooks,
    global_hooks,
    hostile_environment,
    include_if,
    read_only_files,
)
from updating import commit, git


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
    git(
        project.parent,
        "clone",
        "-q",
        "--depth=1",
        f"file://{project.parent / 'deep'}",
        str(project),
    )


def corrupt_index(project: Path) -> None:
    (project / ".git/index").write_bytes(b"DIRC broken")


def missing_object(project: Path) -> None:
    edited_another_function(project)
    commit(project)
    oid = git(project, "rev-parse", "HEAD:src/proj/engine.py")
    (project / f".git/objects/{oid[:2]}/{oid[2:]}").unlink()


def other_file_system(project: Path) -> None:
    """The scratch folder is then in the work tree, where the user has a folder of its name."""
    edited_another_function(project)
    (project / ".fastproj").mkdir()
    (project / ".fastproj/mine.txt").write_text("mine\n")
    commit(project)
    elsewhere = on_other_file_system(project.parent)
    shutil.move(project / ".git", elsewhere)
    (project / ".git").write_text(f"gitdir: {elsewhere}\n")


def on_other_file_system(place: Path) -> Path:
    """Return a path for the git directory of an attempt, on another file system if there is one."""
    return Path("/dev/shm", f"{place.parent.name}.git")  # noqa: S108


WORKING: list[State] = [
    autocrlf,
    configured("autocrlf_input", "core.autocrlf=input"),
    configured("no_file_mode", "core.fileMode=false"),
    configured("no_symlinks", "core.symlinks=false"),
    configured(
        "ignore_case", "core.ignoreCase=true", "core.precomposeUnicode=true", "core.quotePath=true"
    ),
    configured("unsafe_crlf", "core.safecrlf=true", "core.eol=crlf"),
    configured(
        "merge_settings",
        "merge.conflictStyle=diff3",
        "merge.renames=false",
        "merge.directoryRenames=true",
    ),
    configured(
        "status_settings",
        "status.showUntrackedFiles=no",
        "status.relativePaths=true",
        "status.branch=true",
    ),
    configured(
        "diff_settings",
        "diff.noprefix=true",
        "diff.renames=copies",
        "color.ui=always",
        "diff.ignoreSubmodules=all",
    ),
    configured(
        "many_files",
        "feature.manyFiles=true",
        "feature.experimental=true",
        "fetch.writeCommitGraph=true",
    ),
    configured("no_protocol", "protocol.allow=never", "safe.bareRepository=explicit"),
    configured("worktree_config", "extensions.worktreeConfig=true", "core.logAllRefUpdates=always"),
    with_attributes("eol_crlf", "* text eol=crlf\n*.bin binary\n"),
    with_attributes("all_binary", "* binary\n"),
    with_attributes("union", "* merge=union\n"),
    with_attributes("ident", "*.py ident\n*.yaml export-ignore\n"),
    split_index,
    untracked_cache,
    sha256,
    linked_work_tree,
    separate_git_dir,
    other_file_system,
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
REFUSING: list[tuple[State, str]] = [
    (sparse_index, "sparse-checkout disable"),
    (corrupt_index, "index file smaller than expected"),
    (missing_object, "unable to read"),
    (broken_gitconfig, "bad config"),
]
"""States in which an update is refused, and a part of each message."""
CONVERTED = {"autocrlf", "eol_crlf", "ident", "own_attributes", "filter_of_the_user", "unsafe_crlf"}
"""The files in the work tree differ from those in the index."""
