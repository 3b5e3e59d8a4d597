"""Write a merge to the index and the work tree with git, as `git cherry-pick` does."""

import os
import signal
from pathlib import Path

from ..errors import FastprojError
from .merge import Merged
from .repository import Repository

_IN_PROGRESS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")


def check_ready(repository: Repository) -> str:
    """Return the commit that is checked out, after checking that nothing is in progress or uncommitted."""
    top, lock = repository.top, repository.git_dir / "index.lock"
    if any(os.path.lexists(repository.git_dir / name) for name in _IN_PROGRESS):
        raise FastprojError(
            f"a merge, cherry-pick or rebase is in progress in {top}: finish or abort it first"
        )
    if os.path.lexists(lock):
        raise FastprojError(
            f"another git is running in {top}: wait for it, or remove {lock} if it crashed"
        )
    commit = repository.head()
    how = ["--porcelain", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules=dirty"]
    changed = [line[3:] for line in repository.lines("status", *how, "--", repository.where)]
    # `git cherry-pick --abort` would remove what is staged elsewhere.
    changed += repository.lines("diff-index", "--cached", "--name-only", "-z", commit)
    if changed:
        raise FastprojError(
            f"{changed[0]} changed since the last commit: commit or git stash, then try again"
        )
    return commit


def check(repository: Repository, merged: Merged) -> None:
    """Check that the work tree can take the merge."""
    for path, entries in merged.changes.items():
        if any(it and it.startswith("16") for it in entries):
            raise FastprojError(
                f"{path} is a submodule where the template has files: move it, then try again"
            )
    lines = repository.lines("ls-files", "-v", "-z", "--", repository.where)
    hidden = {line[2:] for line in lines if line[0].islower() or line[0] == "S"} & {
        *merged.changes,
        *merged.unmerged,
    }
    if hidden:
        raise FastprojError(
            f"git is told to ignore changes of {min(hidden)}, which the update changes: git update-index "
            "--no-assume-unchanged --no-skip-worktree it, or git sparse-checkout disable, then try again"
        )
    # git itself would overwrite ignored files without a word.
    leaving = {path for path, (_, after) in merged.changes.items() if after is None}
    added = [path for path, (before, _) in merged.changes.items() if before is None]
    blocking = sorted(
        {found for path in added for found in _occupants(repository.top, path)} - leaving
    )
    if blocking:
        raise FastprojError(
            f"untracked files are in the way: {', '.join(blocking)}; move or commit them, then try again"
        )


def _occupants(top: Path, path: str) -> set[str]:
    """Return the files at a path, below it, or in place of one of its folders."""
    places = [top / path, *(top / folder for folder in Path(path).parents[:-1])]
    places += (top / path).rglob("*") if (top / path).is_dir() else ()
    return {
        str(it.relative_to(top))
        for it in places
        if it.is_symlink() or (os.path.lexists(it) and not it.is_dir())
    }


def apply(repository: Repository, merged: Merged, message: str) -> None:
    """Write the merge to the work tree and the index; with conflicts, leave what `git cherry-pick` leaves."""
    # Not for git either, and for good: a signal must not report afterwards that nothing was
    # changed.
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    # so that git does not take a touched file for a changed one
    repository.run("update-index", "-q", "--refresh")
    trees = ("-m", "-u", merged.head, merged.tree)
    # fails if the user saved a file since `check_ready`
    done = repository.run("read-tree", "--dry-run", *trees)
    if done.ok and not (done := repository.run("read-tree", *trees)).ok:
        _restore(repository, merged)
    if not done.ok:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        fix = "free some space, make it writable, or commit what changed, then try again"
        raise FastprojError(
            f"git cannot write the files ({done.reason}), nothing was changed: {fix}"
        )
    if merged.stages:
        removed = [f"0 {'0' * len(merged.head)}\t{path}" for path in sorted(merged.unmerged)]
        data = os.fsencode("\0".join([*removed, *merged.stages, ""]))
        repository.git("update-index", "-z", "--index-info", data=data)
        (repository.git_dir / "MERGE_MSG").write_text(f"{message}\n")
        # The log lets `git gc` keep the commit, and goes with the reference.
        repository.git(
            "update-ref", "--create-reflog", "-m", message, "CHERRY_PICK_HEAD", merged.template
        )


def _restore(repository: Repository, merged: Merged) -> None:
    """Undo what git wrote before it failed: none of these files had uncommitted changes."""
    for path in (path for path, (before, _) in merged.changes.items() if before is None):
        (repository.top / path).unlink(missing_ok=True)
    present = [path for path, (before, _) in merged.changes.items() if before is not None]
    repository.run(
        "checkout-index", "--force", "-z", "--stdin", data=os.fsencode("\0".join([*present, ""]))
    )
