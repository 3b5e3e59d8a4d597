"""Write a merge to the work tree and the index, staged: completely or not at all.

The journal is one commit that REF names: its tree is the merge, its parent HEAD, its message the rest. Without it,
nothing has been changed; with it, the next fastproj finishes the update (`finish`). HEAD contains all that is
overwritten, as an update begins without uncommitted changes.

All files are written to a scratch folder first, then moved into place.
"""

import errno
import json
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..shared.errors import FastprojError
from ..shared.scratch import uninterrupted
from . import trees
from .merge import Merged, Stages
from .moving import Step, fingerprint, occupants, put, replace, undo
from .repository import Head, Repository, open_at
from .trees import SUBMODULE, Change, Entry, joined

REF = "refs/worktree/fastproj/update"  # of this work tree alone, unlike most refs


@dataclass(frozen=True)
class Finished:
    """An interrupted update that was finished."""

    version: str
    left: list[str]
    """Files that were edited in between, and therefore left alone."""


def check(repository: Repository, merged: Merged) -> None:
    """Check that the work tree can take the merge.

    Raises:
        FastprojError: untracked or ignored files are at its paths, or git was told to ignore some of them.
    """
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
    work = _work_folder(repository)
    try:
        before = {it.path: fingerprint(repository.top / it.path) for it in merged.changes}
        if repository.check_ready() != merged.head:
            raise FastprojError(f"{repository.top} has a new commit since the update began: try again")
        index = _stage(repository, merged.changes, merged.stages, merged.tree, work)
        steps = [Step(it.path, before[it.path], _wanted(it, work)) for it in merged.changes]
        with uninterrupted(permanently=True):  # a signal must not report afterwards that nothing was changed
            try:
                _record(repository, merged, version)
                _write(repository, steps, index, work)
            finally:  # written or undone
                _drop(repository)
    except OSError as error:
        way_out = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "make it writable"
        reason = f"cannot write {error.filename or work} ({error.strerror}), nothing was changed"
        raise FastprojError(f"{reason}: {way_out}") from error
    finally:
        with uninterrupted():
            shutil.rmtree(work, ignore_errors=True)
    with suppress(FastprojError):
        repository.git("update-index", "-q", "--refresh", allowed=(0, 1))


def finish(where: Path) -> Finished | None:
    """Finish an update of the project in a folder that was killed; None if there was none.

    Raises:
        FastprojError: it cannot be finished, or was dropped because HEAD has moved.
    """
    try:
        repository = open_at(Path(os.path.realpath(where)))
    except FastprojError:
        return None  # whoever reads the project reports it
    with repository.locked(), uninterrupted():
        journal = repository.run("cat-file", "commit", REF)
        if not journal.ok:
            return None
        header, _, message = journal.text.partition("\n\n")
        details = json.loads(message.partition("\n\n")[2])
        tree, parent = (line.split()[1] for line in header.splitlines()[:2])
        head = repository.head()
        if (head.commit, head.branch) != (parent, details["branch"]):
            _drop(repository)
            raise FastprojError(
                f"an update to {details['version']} was killed, and {repository.top} has had another commit or branch "
                "checked out since: it was dropped; see git status for files that it left, then try again"
            )
        try:
            left = _finish(repository, head, tree, details["stages"], _work_folder(repository))
        except OSError as error:
            raise FastprojError(
                f"an update was killed, and cannot be finished as {error.filename} cannot be written "
                f"({error.strerror}): make it writable, then try again"
            ) from error
    return Finished(details["version"], left)


def _finish(repository: Repository, head: Head, tree: str, stages: Stages, work: Path) -> list[str]:
    """Take the steps that are left, and return the files that were edited since."""
    changes = trees.changes(repository, head.tree, tree)
    for path in (change.path for change in changes):  # killed between moving the old file out and the new one in
        if os.path.lexists(work / "kept" / path) and os.path.lexists(work / "files" / path):
            with suppress(FileExistsError):
                put(work / "kept" / path, repository.top / path)
    lock = repository.index_lock
    if lock.exists() and (work / "index").exists() and lock.read_bytes() == (work / "index").read_bytes():
        lock.unlink()
    index = _stage(repository, changes, stages, tree, work)
    repository.git("read-tree", head.tree, index=work / "head")
    edited = set(repository.changed(".", index=work / "head"))
    steps, left = [], []
    for change in changes:
        step = Step(change.path, fingerprint(repository.top / change.path), _wanted(change, work))
        if step.before == step.after:
            continue
        if change.path in edited if change.before else step.before is not None:
            left.append(change.path)
        else:
            steps.append(step)
    _write(repository, steps, index, work)
    _drop(repository)
    shutil.rmtree(work, ignore_errors=True)
    return left


def _work_folder(repository: Repository) -> Path:
    """Return the scratch folder; it is on the file system of the work tree, as files are moved from it."""
    same = repository.git_dir.stat().st_dev == repository.top.stat().st_dev
    return repository.git_dir / "fastproj" if same else repository.top / ".fastproj"


def _stage(repository: Repository, changes: list[Change], stages: Stages, tree: str, work: Path) -> bytes:
    """Write the files and the index to the scratch folder, and return the present index."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "files").mkdir(parents=True)
    (work / ".gitignore").write_text("*\n")
    repository.git("read-tree", tree, index=work / "tree")
    for change in changes:
        if SUBMODULE in (entry.mode for entry in (change.before, change.after) if entry):
            raise FastprojError(f"{change.path} is a submodule where the template has files: move it, then try again")
    written = joined(change.path for change in changes if change.after)
    options = ["checkout-index", "--force", "--quiet", "-z", "--stdin"]
    repository.git(*options, data=written, index=work / "tree", work_tree=work / "files")
    for change in changes:
        place, file = repository.top / change.path, work / "files" / change.path
        if change.after is None or file.is_symlink():
            continue
        if change.before and place.is_file() and not place.is_symlink():
            mode = stat.S_IMODE(place.stat().st_mode)
            alike = change.before.mode == change.after.mode  # with core.fileMode=false, modes are the user's alone
            file.chmod(mode if alike else mode & 0o666 | file.stat().st_mode & 0o111)
        with file.open("rb") as content:
            os.fsync(content.fileno())
    present = repository.index.read_bytes()
    (work / "index").write_bytes(present)
    found = repository.git("diff-index", "--cached", "--name-only", "-z", "HEAD", index=work / "index").split(b"\0")
    staged = {os.fsdecode(path) for path in found}  # by someone else: those entries stay
    edits = {change.path: change.after for change in changes} | dict.fromkeys(stages)
    unmerged = [(path, Entry(mode, oid), stage) for path, its in stages.items() for mode, oid, stage in its]
    trees.edit_index(
        repository,
        work / "index",
        {path: None if path in stages else entry for path, entry in edits.items() if path not in staged},
        [it for it in unmerged if it[0] not in staged],
    )
    return present


def _wanted(change: Change, work: Path) -> str | None:
    return fingerprint(work / "files" / change.path) if change.after else None


def _record(repository: Repository, merged: Merged, version: str) -> None:
    """Write the journal: the point of no return."""
    details = json.dumps({"version": version, "branch": merged.head.branch, "stages": merged.stages})
    message = f"Update to {version}\n\n{details}\n".encode()
    commit = repository.git("commit-tree", merged.tree, "-p", merged.head.commit, "-F", "-", data=message)
    repository.git("update-ref", REF, commit.decode().strip(), repository.no_object)


def _drop(repository: Repository) -> None:
    repository.git("update-ref", "-d", REF)


def _write(repository: Repository, steps: list[Step], index: bytes, work: Path) -> None:
    """Take the steps and replace the index: all or nothing."""
    lock, folders, done = _lock(repository, work), (work / "files", work / "kept"), list[Step]()
    try:
        if repository.index.read_bytes() != index:
            raise FastprojError(f"git changed {repository.index} meanwhile: try again")
        for step in sorted(steps, key=lambda step: step.after is not None):  # a file may replace a folder
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
    shutil.copyfile(work / "index", work / "lock")
    try:
        put(work / "lock", repository.index_lock)
    except FileExistsError as error:
        way_out = f"wait for it, or remove {repository.index_lock} if it crashed"
        raise FastprojError(f"another git is running in {repository.top}: {way_out}") from error
    return repository.index_lock
