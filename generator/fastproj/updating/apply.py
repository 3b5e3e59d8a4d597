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
from .merge import Merged
from .moving import Step, changed_meanwhile, fingerprint, occupants, put, replace, undo
from .repository import Repository, open_at
from .trees import SUBMODULE, Change, Stages, joined

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
    work = _work_folder(repository)
    try:
        steps, edited, index = _stage(repository, merged.changes, merged.stages, merged.tree, work)
        if repository.check_ready() != merged.head:
            raise FastprojError(f"{repository.top} has a new commit since the update began: try again")
        if edited:
            raise changed_meanwhile(edited[0])
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
        details = json.loads(message)
        tree, parent = (line.split()[1] for line in header.splitlines()[:2])
        head = repository.head()
        if (head.commit, head.branch) != (parent, details["branch"]):
            _drop(repository)
            raise FastprojError(
                f"an update to {details['version']} was killed, and {repository.top} has had another commit or branch "
                "checked out since: it was dropped; see git status for files that it left, then try again"
            )
        try:
            work, changes = _work_folder(repository), trees.changes(repository, head.tree, tree)
            _recover(repository, changes, work)
            steps, edited, index = _stage(repository, changes, details["stages"], tree, work)
            _write(repository, steps, index, work)
        except OSError as error:
            raise FastprojError(
                f"an update was killed, and cannot be finished as {error.filename} cannot be written "
                f"({error.strerror}): make it writable, then try again"
            ) from error
        _drop(repository)
        shutil.rmtree(work, ignore_errors=True)
    return Finished(details["version"], edited)


def _recover(repository: Repository, changes: list[Change], work: Path) -> None:
    """Put back a file that was moved out before its successor was moved in, and release our lock on the index."""
    for path in (change.path for change in changes):
        if os.path.lexists(work / "kept" / path) and os.path.lexists(work / "files" / path):
            with suppress(FileExistsError):
                put(work / "kept" / path, repository.top / path)
    lock = repository.index_lock
    if lock.exists() and (work / "index").exists() and lock.read_bytes() == (work / "index").read_bytes():
        lock.unlink()


def _work_folder(repository: Repository) -> Path:
    """Return the scratch folder; it is on the file system of the work tree, as files are moved from it."""
    same = repository.git_dir.stat().st_dev == repository.top.stat().st_dev
    return repository.git_dir / "fastproj" if same else repository.top / ".fastproj"


def _stage(
    repository: Repository, changes: list[Change], stages: Stages, tree: str, work: Path
) -> tuple[list[Step], list[str], bytes]:
    """Write the files and the index to the scratch folder.

    Return the steps that are left to take, the files that are neither as committed nor as merged, and the present
    index.
    """
    shutil.rmtree(work, ignore_errors=True)
    (work / "files").mkdir(parents=True)
    (work / ".gitignore").write_text("*\n")
    present = {it.path: fingerprint(repository.top / it.path) for it in changes}
    changed = repository.changed()
    repository.git("read-tree", tree, index=work / "tree")
    written = joined(it.path for it in changes if it.after)
    options = ["checkout-index", "--force", "--quiet", "-z", "--stdin"]
    repository.git(*options, data=written, index=work / "tree", work_tree=work / "files")
    steps, edited = [], []
    for it in changes:
        file = work / "files" / it.path
        if it.after and not file.is_symlink():
            _make_durable(file, repository.top / it.path, it)
        step = Step(it.path, present[it.path], fingerprint(file) if it.after else None)
        if step.before == step.after:
            continue
        if it.path in changed if it.before else step.before is not None:
            edited.append(it.path)
        else:
            steps.append(step)
    index = repository.index.read_bytes()
    (work / "index").write_bytes(index)
    entries = {it.path: it.after for it in changes} | dict.fromkeys(stages)
    ours = [path for path in entries if changed.get(path, " ")[0] == " "]  # what someone else staged stays
    unmerged = {path: stages[path] for path in ours if path in stages}
    trees.edit_index(repository, work / "index", {path: entries[path] for path in ours}, unmerged)
    return steps, edited, index


def _make_durable(file: Path, replaced: Path, change: Change) -> None:
    """Give a file the permissions of the one that it replaces, and flush it to the disk."""
    if change.before and change.after and replaced.is_file() and not replaced.is_symlink():
        mode = stat.S_IMODE(replaced.stat().st_mode)
        alike = change.before.mode == change.after.mode  # with core.fileMode=false, modes are the user's alone
        file.chmod(mode if alike else mode & 0o666 | file.stat().st_mode & 0o111)
    with file.open("rb") as content:
        os.fsync(content.fileno())


def _record(repository: Repository, merged: Merged, version: str) -> None:
    """Write the journal: the point of no return."""
    details = json.dumps({"version": version, "branch": merged.head.branch, "stages": merged.stages})
    who = "fastproj <fastproj@localhost> 946684800 +0000"
    text = f"tree {merged.tree}\nparent {merged.head.commit}\nauthor {who}\ncommitter {who}\n\n{details}\n".encode()
    commit = repository.git("hash-object", "-t", "commit", "-w", "--stdin", data=text)
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
        raise repository.index_is_locked() from error
    return repository.index_lock
