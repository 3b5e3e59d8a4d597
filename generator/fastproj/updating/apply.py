"""Write a merge to the index and the work tree with git, as `git cherry-pick` does."""

import os
import signal
from itertools import chain
from pathlib import Path

from ..errors import FastprojError
from ..template.inspection import walk
from .merge import Merge
from .repository import Repository

_IN_PROGRESS = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    # what an earlier cherry-pick or revert left, with which git would go on after this one
    "sequencer": "cherry-pick",
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check_ready(repository: Repository, keeps_staged: bool = False) -> str:
    """Return the commit that is checked out, if nothing is in progress or uncommitted.

    With `keeps_staged`, the project may have staged changes: return a commit of them.
    """
    top = repository.top
    lock = repository.git_dir / "index.lock"
    for name, command in _IN_PROGRESS.items():
        if os.path.lexists(repository.git_dir / name):
            raise FastprojError(
                f"a {command} is in progress in {top}: finish it, or end it with "
                f"git {command} --{'quit' if name == 'sequencer' else 'abort'}"
            )
    if os.path.lexists(lock):
        raise FastprojError(
            f"another git is running in {top}: wait for it, or remove {lock} if it crashed"
        )
    commit = repository.head()
    options = ["-z", "--untracked-files=no", "--no-renames", "--ignore-submodules=dirty"]
    status = repository.lines("status", "--porcelain", *options, "--", repository.where)
    # `git cherry-pick --abort` would remove what is staged elsewhere.
    staged = repository.lines("diff-index", "--cached", "--name-only", "-z", commit)
    is_whole = all(path.startswith(repository.prefix) for path in staged)
    unstaged = [line[3:] for line in status if line[1] != " "]
    if keeps_staged and staged and is_whole and not unstaged:
        tree = repository.git("write-tree")
        files = repository.files(tree)
        return repository.commit(tree, files, [commit], "Staged", repository.git_dir / "index")
    changed = [*unstaged, *staged]
    if changed:
        raise FastprojError(
            f"{changed[0]} changed since the last commit: commit or discard that, then try again"
        )
    return commit


def check(
    repository: Repository,
    merge: Merge,
) -> None:
    """Check that the work tree can take the merge."""
    for path, entries in merge.changes.items():
        if any(entry and entry.startswith("16") for entry in entries):
            raise FastprojError(
                f"{path} is a submodule where the template has files: move it, then try again"
            )
    for line in repository.lines("ls-files", "-v", "-z", "--", repository.where):
        mark, _, path = line.partition(" ")
        is_hidden = mark.islower() or mark == "S"
        if is_hidden and (path in merge.changes or path in merge.unmerged):
            option = "--no-skip-worktree" if mark in "Ss" else "--no-assume-unchanged"
            raise FastprojError(
                f"git is told to ignore changes of {path}, which the update changes: git "
                f"update-index {option} it, or git sparse-checkout disable, then try again"
            )
    if blocking := _untracked(repository.top, merge):
        raise FastprojError(
            f"untracked files are in the way: {', '.join(sorted(blocking))}; "
            "move them, then try again"
        )


def _untracked(
    top: Path,
    merge: Merge,
) -> set[str]:
    """Return files in the places of new ones: git itself would overwrite those it ignores."""
    added = []
    leaving = set()
    for path, (before, after) in merge.changes.items():
        if before is None:
            added.append(top / path)
        if after is None:
            leaving.add(top / path)
    blocking = set(chain.from_iterable(_in_the_way(top, new) for new in added))
    return {str(file.relative_to(top)) for file in blocking - leaving}


def _in_the_way(
    top: Path,
    new: Path,
) -> list[Path]:
    """Return what must leave before a file can be written."""
    around = [folder for folder in new.parents if top in folder.parents]
    for place in (*reversed(around), new):
        if place.is_symlink() or (os.path.lexists(place) and not place.is_dir()):
            return [place]  # what is behind a link is elsewhere
    return [place for place in walk(new) if place.is_symlink() or place.is_file()]


def base_of(repository: Repository, merge: Merge) -> str:
    """Return what a merge began from, as git's commands name it: HEAD, or what was staged."""
    return "HEAD" if merge.head == repository.head() else merge.head[:12]


def find_undo(
    repository: Repository,
    merge: Merge,
    work: Path,
) -> str:
    """Return the command that undoes a merge, after trying it on a copy; empty if it fails."""
    undo = ["read-tree", "-m", "-u", merge.tree[:12], base_of(repository, merge)]
    if merge.stages:
        undo = ["cherry-pick", "--abort"]
    variables = {
        "GIT_DIR": work / "merge",
        "GIT_WORK_TREE": work / "undo",
        "GIT_INDEX_FILE": work / "undo.index",
    }
    (work / "undo").mkdir()
    (work / "merge/CHERRY_PICK_HEAD").write_text(f"{merge.template}\n")
    repository.git("read-tree", merge.tree, variables=variables)
    changed = [path for path, (_, after) in merge.changes.items() if after]
    names = os.fsencode("\0".join([*changed, ""]))
    repository.run("checkout-index", "-z", "-u", "--stdin", data=names, variables=variables)
    repository.index_info(merge.unmerged_entries, variables)
    return " ".join(undo) if repository.run(*undo, variables=variables).ok else ""


def apply(
    repository: Repository,
    merge: Merge,
    message: str,
) -> None:
    """Write the merge to the work tree and the index.

    With conflicts, leave what `git cherry-pick` leaves.
    """
    # Not for git either, and for good: a signal must not report afterwards that nothing was
    # changed.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # so that git does not take a touched file for a changed one
    repository.run("update-index", "-q", "--refresh")
    trees = ["-m", "-u", merge.head, merge.tree]
    # fails if the user saved a file since `check_ready`
    done = repository.run("read-tree", "--dry-run", *trees)
    if done.ok:
        done = repository.run("read-tree", *trees)
        if not done.ok:
            _restore(repository, merge)
    if not done.ok:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        fix = "free some space, make it writable, or commit what changed, then try again"
        raise FastprojError(
            f"git cannot write the files ({done.reason}), nothing was changed: {fix}"
        )
    if merge.stages:
        repository.index_info(merge.unmerged_entries, {})
        (repository.git_dir / "MERGE_MSG").write_text(f"{message}\n")
        # The log lets `git gc` keep the commit, and goes with the reference.
        reference = ["CHERRY_PICK_HEAD", merge.template]
        repository.git("update-ref", "--create-reflog", "-m", message, *reference)


def _restore(
    repository: Repository,
    merge: Merge,
) -> None:
    """Undo what git wrote before it failed: none of these files had uncommitted changes."""
    present = []
    for path, (before, _) in merge.changes.items():
        if before is None:
            (repository.top / path).unlink(missing_ok=True)
        else:
            present.append(path)
    names = os.fsencode("\0".join([*present, ""]))
    repository.run("checkout-index", "--force", "-z", "--stdin", data=names)
