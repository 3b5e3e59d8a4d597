"""Write a merge to the index and the work tree with git, as `git cherry-pick` does."""

import os
import signal
from pathlib import Path

from ..shared.errors import FastprojError
from ..shared.scratch import SIGNALS
from .merge import Merged
from .repository import SUBMODULE, Repository


def check(repository: Repository, merged: Merged) -> None:
    """Check that the work tree can take the merge.

    Raises:
        FastprojError: untracked or ignored files are at its paths, or git was told to ignore some of them.
    """
    for path, entries in merged.changes.items():
        if any(entry and entry.startswith(SUBMODULE) for entry in entries):
            raise FastprojError(f"{path} is a submodule where the template has files: move it, then try again")
    lines = repository.lines("ls-files", "-v", "-z", "--", repository.prefix or ".")
    hidden = {line[2:] for line in lines if line[0].islower() or line[0] == "S"} & {*merged.changes, *merged.unmerged}
    if hidden:
        raise FastprojError(
            f"git is told to ignore changes of {min(hidden)}, which the update changes: git update-index "
            "--no-assume-unchanged --no-skip-worktree it, or git sparse-checkout disable, then try again"
        )
    # git would refuse untracked files itself, but overwrite ignored ones without a word.
    leaving = {path for path, (_, after) in merged.changes.items() if after is None}
    added = [path for path, (before, _) in merged.changes.items() if before is None]
    blocking = sorted({found for path in added for found in _occupants(repository.top, path)} - leaving)
    if blocking:
        more = f" and {len(blocking) - 5} more" if len(blocking) > 5 else ""
        names = ", ".join(blocking[:5]) + more
        way_out = "move them away or commit them, then try again"
        raise FastprojError(f"untracked files are in the way of new ones: {names}; {way_out}")


def _occupants(top: Path, path: str) -> set[str]:
    """Return the files at a path, below it, or in place of one of its folders."""
    for folder in [*list(Path(path).parents)[-2::-1], Path(path)]:
        place = top / folder
        if place.is_symlink() or (os.path.lexists(place) and not place.is_dir()):
            return {str(folder)}
    below = [(root, name) for root, folders, names in os.walk(top / path) for name in [*folders, *names]]
    return {
        os.path.relpath(os.path.join(root, name), top)
        for root, name in below
        if os.path.islink(os.path.join(root, name)) or not os.path.isdir(os.path.join(root, name))
    }


def apply(repository: Repository, merged: Merged, message: str) -> None:
    """Write the merge to the work tree and the index; with conflicts, leave what `git cherry-pick` leaves.

    Raises:
        FastprojError: git could not write a file; nothing was changed.
    """
    # Not for git either, and for good: a signal must not report afterwards that nothing was changed.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    repository.run("update-index", "-q", "--refresh")  # so that git does not take a touched file for a changed one
    done = repository.run("read-tree", "-m", "-u", merged.head, merged.tree)
    if not done.ok:
        _restore(repository, merged)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        reason = done.stderr.decode(errors="replace").partition("\n")[0]
        way_out = "free some space, make it writable, or commit what changed, then try again"
        raise FastprojError(f"git cannot write the files ({reason}), nothing was changed: {way_out}")
    if merged.stages:
        none = "0" * len(merged.head)
        lines = [*(f"0 {none}\t{path}" for path in sorted(merged.unmerged)), *merged.stages, ""]
        repository.git("update-index", "-z", "--index-info", data=os.fsencode("\0".join(lines)))
        (repository.git_dir / "MERGE_MSG").write_text(f"{message}\n")
        # The log lets `git gc` keep the commit, and goes with the reference.
        repository.git("update-ref", "--create-reflog", "-m", message, "CHERRY_PICK_HEAD", merged.template)


def _restore(repository: Repository, merged: Merged) -> None:
    """Undo what git wrote before it failed: none of these files had uncommitted changes."""
    for path, (before, _) in merged.changes.items():
        place = repository.top / path
        if before is None and os.path.lexists(place):
            place.unlink()
    present = [path for path, (before, _) in merged.changes.items() if before is not None]
    repository.run("checkout-index", "--force", "-z", "--stdin", data=os.fsencode("\0".join([*present, ""])))
