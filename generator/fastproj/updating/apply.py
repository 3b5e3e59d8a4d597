"""Write a merge to the work tree and the index, staged: completely or not at all.

HEAD contains all that is overwritten, as an update begins without uncommitted changes. All files are written to a
scratch folder first, then moved into place. From the journal, an interrupted update can be continued or aborted; to
abort is to move with swapped trees.
"""

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..shared.errors import FastprojError
from ..shared.scratch import remove_abandoned, temporary_folder, uninterrupted
from . import journal, trees
from .journal import Pending, record, work_folder
from .merge import Merged
from .moving import NOT_A_FILE, Step, changed_meanwhile, fingerprint, occupants, put, replace, undo
from .repository import Repository
from .trees import SUBMODULE, Edits, Stages


@dataclass(frozen=True)
class _Staged:
    """What is left to do, after all files were written to the scratch folder."""

    steps: list[Step]
    edited: list[str]
    """Files with neither the content before nor the one after."""
    index: bytes
    """The present index."""


def check(repository: Repository, merged: Merged) -> None:
    """Check that the work tree can take the merge.

    Raises:
        FastprojError: untracked or ignored files are at its paths, or git was told to ignore some of them.
    """
    for change in merged.changes:
        if SUBMODULE in (entry.mode for entry in (change.before, change.after) if entry):
            raise FastprojError(f"{change.path} is a submodule where the template has files: move it, then try again")
    hidden = repository.hidden() & {*(change.path for change in merged.changes), *merged.stages}
    if hidden:
        raise FastprojError(
            f"git is told to ignore changes of {min(hidden)}, which the update changes: git update-index "
            "--no-assume-unchanged --no-skip-worktree it, or git sparse-checkout disable, then try again"
        )
    leaving = {change.path for change in merged.changes if change.after is None}
    added = [change.path for change in merged.changes if change.before is None]
    blocking = sorted({found for path in added for found in occupants(repository.top, path)} - leaving)
    if blocking:
        more = f" and {len(blocking) - 5} more" if len(blocking) > 5 else ""
        raise FastprojError(
            f"untracked files are in the way of new ones: {', '.join(blocking[:5])}{more}; "
            "move them away or commit them, then try again"
        )


def apply(repository: Repository, merged: Merged, version: str) -> None:
    """Write the merge to the work tree and the index.

    Raises:
        FastprojError: a file changed meanwhile or cannot be written; nothing was changed.
    """
    work = work_folder(repository)
    try:
        unmerged = dict.fromkeys(merged.stages)
        staged = _stage(repository, work, merged.head.tree, merged.tree, unmerged, merged.stages)
        if repository.check_ready() != merged.head:
            raise FastprojError(f"{repository.top} has a new commit since the update began: try again")
        if staged.edited:
            raise changed_meanwhile(staged.edited[0])
        digests = [repository.index_digest(), repository.index_digest(work / "index")]
        head = merged.head
        update = Pending(version, head.branch, head.commit, merged.tree, repository.prefix, merged.stages, digests)
        with uninterrupted(permanently=True):  # a signal must not report afterwards that nothing was changed
            try:
                record(repository, update)
                _write(repository, staged, work)
            finally:  # written or undone
                journal.drop(repository)
    except OSError as error:
        way_out = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "make it writable"
        reason = f"cannot write {error.filename or work} ({error.strerror}), nothing was changed"
        raise FastprojError(f"{reason}: {way_out}") from error
    finally:
        with uninterrupted():
            journal.clean_up(repository)
    with suppress(FastprojError):
        repository.git("update-index", "-q", "--refresh", allowed=(0, 1))


@dataclass(frozen=True)
class Ended:
    """An interrupted update that was continued or aborted."""

    repository: Repository
    version: str
    aborted: bool
    edited: list[str]
    """Files that were edited since the interruption, and therefore left alone."""
    conflicts: list[str]


def end(where: Path, abort: bool) -> Ended:
    """Continue or abort the interrupted update of the project in a folder.

    Raises:
        FastprojError: there is none, a file cannot be written, or it was dropped as HEAD has moved.
    """
    found = journal.pending(where)
    if found is None:
        raise FastprojError(f"no update was interrupted in {where}: there is nothing to continue or abort")
    repository, update = found
    with repository.locked():
        remove_abandoned(temporary_folder(), "update")
        journal.drop_if_outdated(repository, update)
        edited = _abort(repository, update) if abort else _continue(repository, update)
    return Ended(repository, update.version, abort, edited, [] if abort else sorted(update.stages))


def _continue(repository: Repository, update: Pending) -> list[str]:
    return _resume(repository, repository.head().tree, update.tree, dict.fromkeys(update.stages), update.stages)


def _abort(repository: Repository, update: Pending) -> list[str]:
    committed = trees.files(repository, "HEAD")
    unmerged = {path: committed.get(path) for path in update.stages}
    return _resume(repository, update.tree, repository.head().tree, unmerged, {})


def _resume(repository: Repository, before: str, after: str, unmerged: Edits, stages: Stages) -> list[str]:
    work = work_folder(repository)
    with uninterrupted():
        try:
            _recover(repository, work)
            staged = _stage(repository, work, before, after, unmerged, stages)
            _write(repository, staged, work)
        except OSError as error:
            raise FastprojError(
                f"the interrupted update cannot be ended, as {error.filename} cannot be written "
                f"({error.strerror}): make it writable, then try again"
            ) from error
        journal.drop(repository)
    return staged.edited


def _recover(repository: Repository, work: Path) -> None:
    """Put back a file that was moved out before its successor was moved in, and release our lock on the index."""
    kept = work / "kept"
    for path in (Path(root, name).relative_to(kept) for root, _, names in os.walk(kept) for name in names):
        if os.path.lexists(work / "files" / path):
            with suppress(FileExistsError):
                put(kept / path, repository.top / path)
    lock = repository.index_lock
    if lock.exists() and (work / "index").exists() and lock.read_bytes() == (work / "index").read_bytes():
        lock.unlink()


def _stage(repository: Repository, work: Path, before: str, after: str, unmerged: Edits, stages: Stages) -> _Staged:
    """Write the files of a tree, and the index with its entries, to the scratch folder."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / ".gitignore").write_text("*\n")
    changes = trees.changes(repository, before, after)
    leaving = {it.path for it in changes if it.after is None}
    present = {it.path: _present(repository.top, it.path, leaving) for it in changes}
    uncommitted = repository.changed()
    committed = {it.path for it in changes if it.before and it.path not in uncommitted}
    committed = committed if before == repository.head().tree else set()
    to_compare = [it for it in changes if it.before and it.path not in committed]
    trees.check_out(repository, after, [it for it in changes if it.after], work / "files", work / "tree")
    trees.check_out(repository, before, to_compare, work / "before", work / "tree")
    steps, edited = [], []
    for it in changes:
        old, new = (work / name / it.path for name in ("before", "files"))
        step = Step(it.path, present[it.path], fingerprint(new) if it.after else None)
        if step.before == step.after:
            continue
        # git knows better whether a file is as committed, for example with core.fileMode=false.
        if it.path in committed or step.before == (fingerprint(old) if it.before else None):
            steps.append(step)
        else:
            edited.append(it.path)
    index = repository.index.read_bytes()
    (work / "index").write_bytes(index)
    trees.edit_index(repository, work / "index", {it.path: it.after for it in changes} | dict(unmerged), stages)
    return _Staged(steps, edited, index)


def _present(top: Path, path: str, leaving: set[str]) -> str | None:
    """Return the fingerprint of a path; None also for a folder all of whose files leave."""
    found = fingerprint(top / path)
    return None if found == NOT_A_FILE and occupants(top, path) <= leaving else found


def _write(repository: Repository, staged: _Staged, work: Path) -> None:
    """Take the steps and replace the index: all or nothing."""
    lock, folders, done = _lock(repository, work), (work / "files", work / "kept"), list[Step]()
    try:
        if repository.index.read_bytes() != staged.index:
            raise FastprojError(f"git changed {repository.index} meanwhile: try again")
        for step in sorted(staged.steps, key=lambda step: step.after is not None):  # a file may replace a folder
            done.append(step)
            replace(repository.top, step, *folders)
        os.replace(lock, repository.index)
    except (FastprojError, OSError):
        for step in reversed(done):
            with suppress(FastprojError, OSError):  # what someone changed meanwhile stays
                undo(repository.top, step, *folders)
        lock.unlink(missing_ok=True)
        raise


def _lock(repository: Repository, work: Path) -> Path:
    """Take git's lock on the index, with the new index as its content."""
    prepared = repository.git_dir / "fastproj/lock"  # on the file system of the index
    prepared.parent.mkdir(exist_ok=True)
    shutil.copyfile(work / "index", prepared)
    try:
        put(prepared, repository.index_lock)
    except FileExistsError as error:
        raise repository.index_is_locked() from error
    return repository.index_lock
