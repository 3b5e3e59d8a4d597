"""Write a merge to the work tree and the index, staged: completely or not at all.

The journal is one commit that REF names: its tree is the merge, its parent HEAD, its message the rest. Without it,
nothing has been changed; with it, the next fastproj finishes the update (`finish`). HEAD contains all that is
overwritten, as an update begins without uncommitted changes.

All files are written to a scratch folder first, then moved into place. What a file replaces is moved out and compared
with what was expected, so that a file that an editor saves at this moment is put back and not lost. To undo is to move
with swapped arguments.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..shared.errors import FastprojError
from ..shared.scratch import uninterrupted
from .merge import Merged, Stages
from .repository import SUBMODULE, Change, Entry, Head, Repository, joined, open_at

REF = "refs/worktree/fastproj/update"  # of this work tree alone, unlike most refs


@dataclass(frozen=True)
class Finished:
    """An interrupted update that was finished."""

    version: str
    left: list[str]
    """Files that were edited in between, and therefore left alone."""


@dataclass(frozen=True)
class Step:
    """A file to move into place: fingerprints of what it replaces and of itself; None for no file."""

    path: str
    before: str | None
    after: str | None


def blocking(repository: Repository, merged: Merged) -> list[str]:
    """Return the untracked and ignored files at paths where the merge adds files."""
    leaving = {change.path for change in merged.changes if change.after is None}
    added = [change.path for change in merged.changes if change.before is None]
    return sorted({found for path in added for found in _occupants(repository.top, path)} - leaving)


def _occupants(top: Path, path: str) -> set[str]:
    """Return the files at a path, below it, or in place of one of its folders."""
    for folder in [*list(Path(path).parents)[-2::-1], Path(path)]:
        place = top / folder
        if place.is_symlink() or (os.path.lexists(place) and not place.is_dir()):
            return {str(folder)}
    return {
        os.path.relpath(os.path.join(root, name), top)
        for root, folders, names in os.walk(top / path)
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(root, name)))]
    }


def fingerprint(place: Path) -> str | None:
    """Return a digest of a file's content and kind; None if there is no file, or a folder without files."""
    try:
        status = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(status.st_mode):
        return f"link {os.readlink(place)}"
    if stat.S_ISDIR(status.st_mode):
        return "folder" if _occupants(place, ".") else None
    if not stat.S_ISREG(status.st_mode):
        return "special file"
    with place.open("rb") as file:
        return f"{'x' if status.st_mode & 0o100 else '-'} {hashlib.file_digest(file, 'sha256').hexdigest()}"


def apply(repository: Repository, merged: Merged, version: str) -> None:
    """Write the merge to the work tree and the index.

    Raises:
        FastprojError: a file changed meanwhile or cannot be written; nothing was changed.
    """
    work = _work_folder(repository)
    try:
        before = {it.path: fingerprint(repository.top / it.path) for it in merged.changes}
        repository.check_ready(*(it.path for it in merged.changes if not it.path.startswith(repository.prefix)))
        if repository.head() != merged.head:
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
        told = json.loads(message.partition("\n\n")[2])
        tree, parent = (line.split()[1] for line in header.splitlines()[:2])
        head = repository.head()
        if (head.commit, head.branch) != (parent, told["branch"]):
            _drop(repository)
            raise FastprojError(
                f"an update to {told['version']} was killed, and {repository.top} has another commit or branch since: "
                "it was dropped; see git status for files that it left, then try again"
            )
        try:
            left = _finish(repository, head, tree, told["stages"], _work_folder(repository))
        except OSError as error:
            raise FastprojError(
                f"an update was killed, and cannot be finished as {error.filename} cannot be written "
                f"({error.strerror}): make it writable, then try again"
            ) from error
    return Finished(told["version"], left)


def _finish(repository: Repository, head: Head, tree: str, stages: Stages, work: Path) -> list[str]:
    """Take the steps that are left, and return the files that were edited since."""
    changes = repository.changes(head.tree, tree)
    for path in (change.path for change in changes):  # killed between moving the old file out and the new one in
        if os.path.lexists(work / "kept" / path) and os.path.lexists(work / "files" / path):
            with suppress(FileExistsError):
                _put(work / "kept" / path, repository.top / path)
    lock = _lock_of(repository)
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
        _to_disk(file)
    present = repository.index.read_bytes()
    (work / "index").write_bytes(present)
    found = repository.git("diff-index", "--cached", "--name-only", "-z", "HEAD", index=work / "index").split(b"\0")
    staged = {os.fsdecode(path) for path in found}  # by someone else: those entries stay
    edits = {change.path: change.after for change in changes} | dict.fromkeys(stages)
    unmerged = [(path, Entry(mode, oid), stage) for path, its in stages.items() for mode, oid, stage in its]
    repository.edit_index(
        work / "index",
        {path: None if path in stages else entry for path, entry in edits.items() if path not in staged},
        [it for it in unmerged if it[0] not in staged],
    )
    return present


def _wanted(change: Change, work: Path) -> str | None:
    return fingerprint(work / "files" / change.path) if change.after else None


def _record(repository: Repository, merged: Merged, version: str) -> None:
    """Write the journal: the point of no return."""
    told = json.dumps({"version": version, "branch": merged.head.branch, "stages": merged.stages})
    message = f"Update to {version}\n\n{told}\n".encode()
    commit = repository.git("commit-tree", merged.tree, "-p", merged.head.commit, "-F", "-", data=message)
    repository.git("update-ref", REF, commit.decode().strip(), repository.no_object)


def _drop(repository: Repository) -> None:
    repository.git("update-ref", "-d", REF)


def _write(repository: Repository, steps: list[Step], index: bytes, work: Path) -> None:
    """Take the steps and replace the index, all or none."""
    lock, done = _lock_of(repository), list[Step]()
    _lock(repository, lock, work / "index")
    try:
        if repository.index.read_bytes() != index:
            raise FastprojError(f"git changed {repository.index} meanwhile: try again")
        for step in sorted(steps, key=lambda step: step.after is not None):  # a file may replace a folder
            done.append(step)
            _replace(repository.top, step, work / "files", work / "kept")
        os.replace(lock, repository.index)
    except (FastprojError, OSError):
        for step in reversed(done):
            now = fingerprint(repository.top / step.path)
            if now != step.before and now in (step.after, None):
                _replace(repository.top, Step(step.path, now, step.before), work / "kept", work / "files")
        lock.unlink(missing_ok=True)
        raise


def _lock_of(repository: Repository) -> Path:
    return repository.index.with_name(repository.index.name + ".lock")


def _lock(repository: Repository, lock: Path, staged: Path) -> None:
    """Take git's lock on the index, with the new index as its content."""
    try:
        try:
            os.link(staged, lock)
        except PermissionError:  # a file system without hard links
            with lock.open("xb") as file:
                file.write(staged.read_bytes())
    except FileExistsError as error:
        raise FastprojError(
            f"another git is running in {repository.top}: wait for it, or remove {lock} if it crashed"
        ) from error


def _replace(top: Path, step: Step, incoming: Path, outgoing: Path) -> None:
    """Move a file out of the work tree and another one in.

    Raises:
        FastprojError: it is not the expected file; it was left alone.
    """
    place, kept = top / step.path, outgoing / step.path
    changed = FastprojError(f"{step.path} was changed meanwhile: commit or git stash, then try again")
    if fingerprint(place) != step.before:
        raise changed
    if step.before is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.rename(place, kept)
        if fingerprint(kept) != step.before:
            _put(kept, place)
            raise changed
    if step.after is None:
        _remove_empty(place.parent, top)
        return
    for folder, _, _ in os.walk(place, topdown=False):
        os.rmdir(folder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _put(incoming / step.path, place)
    except FileExistsError:
        raise changed from None


def _put(source: Path, target: Path) -> None:
    """Move a file to where there must be none; unlike a rename, a link fails if there is one."""
    try:
        os.link(source, target, follow_symlinks=False)
        source.unlink()
    except PermissionError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "created by another program", str(target)) from None
        os.rename(source, target)


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove folders that became empty, as git does."""
    with suppress(OSError):
        while folder != top:
            folder.rmdir()
            folder = folder.parent


def _to_disk(file: Path) -> None:
    with file.open("rb") as content:
        os.fsync(content.fileno())
