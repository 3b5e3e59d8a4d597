"""Put a merge into the work tree and the index: wholly, or not at all.

Everything is staged in a folder of git's own. A journal, renamed into its place, is the point of no return: before it
nothing has happened, after it everything will, if need be by the next fastproj in this repository (`finish`). A path
whose content is neither what it was nor what it shall be was changed by someone meanwhile, and is left alone.
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
from typing import Any

from ..shared.errors import FastprojError
from ..shared.scratch import uninterrupted
from .merge import Change, Merged
from .repository import SUBMODULE, Repository, joined


@dataclass(frozen=True)
class Finished:
    """What an interrupted update came to when it was finished."""

    label: str
    left: list[str]
    """Paths that someone changed meanwhile."""


def in_the_way(repository: Repository, merged: Merged) -> list[str]:
    """Return what lies untracked or ignored where the merge would put something new."""
    leaving = {change.path for change in merged.changes if change.after is None}
    found = set()
    for change in merged.changes:
        if change.before is not None or change.after is None:
            continue
        parents = [str(parent) for parent in Path(change.path).parents][-2::-1]
        for path in (*parents, change.path):
            place = repository.top / path
            if path in leaving or not os.path.lexists(place):
                continue
            if path == change.path and not place.is_symlink() and place.is_dir():
                found |= _others_in(repository.top, path, leaving)
            elif path == change.path or place.is_symlink() or not place.is_dir():
                found.add(path)
                break
    return sorted(found)


def _others_in(top: Path, folder: str, leaving: set[str]) -> set[str]:
    """Return the files in a folder that would not leave it."""
    files = {
        os.path.relpath(os.path.join(root, name), top)
        for root, folders, names in os.walk(top / folder)
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(root, name)))]
    }
    return files - leaving


def fingerprint(place: Path) -> str | None:
    """Return what tells a file's content and kind from another's; None where there is none."""
    try:
        status = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(status.st_mode):
        return f"link {os.readlink(place)}"
    if not stat.S_ISREG(status.st_mode):
        return "folder" if stat.S_ISDIR(status.st_mode) else "other"
    with place.open("rb") as file:
        return f"{'x' if status.st_mode & 0o100 else '-'} {hashlib.file_digest(file, 'sha256').hexdigest()}"


def apply(repository: Repository, merged: Merged, label: str) -> None:
    """Write the merge to the work tree and the index, staged and not committed.

    Raises:
        FastprojError: something changed meanwhile, or cannot be written; then nothing was changed.
    """
    work = repository.git_dir / "fastproj"
    shutil.rmtree(work, ignore_errors=True)
    try:
        before = {it.path: fingerprint(repository.top / it.path) if it.before else None for it in merged.changes}
        index_before, entries = _digest(repository.index), _entries(repository)
        repository.check_ready()
        if repository.tree_of_head() != merged.head:
            raise FastprojError(f"{repository.top} has a new commit since the update began: try again")
        (work / "files").mkdir(parents=True)
        _stage(repository, merged, work)
        journal = {
            "label": label,
            "paths": [
                {"path": change.path, "before": before[change.path], "after": _after(work, change)}
                for change in merged.changes
            ],
            "index": {"before": index_before, "after": _digest(work / "index"), "entries": entries},
        }
        for folder, _, names in os.walk(work):
            for name in names:
                _to_disk(Path(folder, name))
        with uninterrupted(permanently=True):  # nobody may be told afterwards that nothing was changed
            try:
                _write(work / "journal.json", json.dumps(journal))
            except OSError:
                (work / "journal.json").unlink(missing_ok=True)
                raise
            _forward(repository, work, journal, fresh=True)
    except OSError as error:
        way_out = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "make it writable"
        reason = f"cannot write {error.filename or work} ({error.strerror}), nothing was changed"
        raise FastprojError(f"{reason}: {way_out}") from error
    finally:
        if not (work / "journal.json").exists():
            with uninterrupted():
                shutil.rmtree(work, ignore_errors=True)
    with suppress(FastprojError):
        repository.git("update-index", "-q", "--refresh", allowed=(0, 1))


def finish(repository: Repository) -> Finished | None:
    """Finish an update that was killed after its point of no return; None where there was none.

    Raises:
        FastprojError: it cannot be finished yet; says why.
    """
    work = repository.git_dir / "fastproj"
    try:
        journal = json.loads((work / "journal.json").read_text())
    except FileNotFoundError:
        return None
    if _entries(repository) == journal["index"]["entries"]:
        journal["index"]["before"] = _digest(repository.index)  # git status, say, writes it anew as it was
    try:
        with uninterrupted():
            left = _forward(repository, work, journal, fresh=False)
    except OSError as error:
        raise FastprojError(
            f"an update was killed, and cannot be finished as {error.filename} cannot be written ({error.strerror}): "
            "make it writable, then try again"
        ) from error
    return Finished(journal["label"], left)


def _stage(repository: Repository, merged: Merged, work: Path) -> None:
    """Write the files as a checkout would, and the index as it will be."""
    whole, index = work / "whole", work / "index"
    repository.git("read-tree", merged.tree, index=whole)
    written = [change.path for change in merged.changes if change.after is not None]
    options = ["checkout-index", "--force", "--quiet", "-z", "--stdin"]
    repository.git(*options, data=joined(written), index=whole, work_tree=work / "files")
    whole.unlink()
    for change in merged.changes:  # with core.fileMode=false a mode is the user's alone
        place = repository.top / change.path
        if change.before and change.after and change.before.mode == change.after.mode and not place.is_symlink():
            (work / "files" / change.path).chmod(place.stat().st_mode & 0o777 | 0o600)
    if repository.index.exists():
        shutil.copyfile(repository.index, index)
    nothing = "0" * len(merged.tree)
    lines = [f"0 {nothing}\t{path}" for path in {*(it.path for it in merged.changes), *merged.stages}]
    for change in merged.changes:
        if change.after is not None and change.path not in merged.stages:
            lines.append(f"{change.after.mode} {change.after.oid}\t{change.path}")
    for path, stages in merged.stages.items():
        lines += [f"{mode} {oid} {stage}\t{path}" for mode, oid, stage in stages]
    repository.git("update-index", "-z", "--index-info", data=joined(lines), index=index)


def _after(work: Path, change: Change) -> str | None:
    if change.after is None:
        return None
    if SUBMODULE in (change.after.mode, change.before.mode if change.before else ""):
        raise FastprojError(f"{change.path} is a submodule where the template has files: move it, then try again")
    return fingerprint(work / "files" / change.path)


def _forward(repository: Repository, work: Path, journal: dict[str, Any], fresh: bool) -> list[str]:
    """Bring the work tree and the index to what the journal says, and return what was left alone.

    A fresh one that fails is taken back.
    """
    index, lock = repository.index, repository.index.with_name(repository.index.name + ".lock")
    wanted = journal["index"]
    same = _digest(index) == wanted["before"]
    try:
        if same:
            _take(lock, work / "index", wanted["after"], index)
        if fresh and not same:
            raise FastprojError(f"git changed {index} meanwhile: try again")
    except (FastprojError, OSError):
        if fresh:
            (work / "journal.json").unlink()
        raise
    left: list[str] = []
    done: list[dict[str, Any]] = []
    try:
        for step in sorted(journal["paths"], key=lambda step: step["after"] is not None):  # what leaves goes first
            now = _unless_empty(repository.top / step["path"])
            if now == step["after"]:
                continue
            if now == step["before"]:
                done.append(step)
                _step(repository, work, step)
            elif fresh:
                raise FastprojError(f"{step['path']} was changed meanwhile: commit, or git stash, then try again")
            else:
                left.append(step["path"])
    except (FastprojError, OSError):
        if fresh:
            for step in reversed(done):
                _step_back(repository, work, step)
            lock.unlink(missing_ok=True)
            (work / "journal.json").unlink()
        raise
    if same:
        os.replace(lock, index)
    (work / "journal.json").unlink()
    shutil.rmtree(work, ignore_errors=True)
    return left


def _unless_empty(place: Path) -> str | None:
    """Return a path's fingerprint; None also for a folder that all files have left."""
    found = fingerprint(place)
    return None if found == "folder" and not any(names for _, _, names in os.walk(place)) else found


def _take(lock: Path, staged: Path, digest: str, index: Path) -> None:
    """Take git's lock on the index, with the new index in it; one that we took before we were killed is still ours."""
    try:
        try:
            os.link(staged, lock)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            with lock.open("xb") as file:
                file.write(staged.read_bytes())
    except FileExistsError as error:
        if _digest(lock) != digest:
            raise FastprojError(
                f"another git is at work ({index}): wait for it, or remove {lock} if it died"
            ) from error


def _step(repository: Repository, work: Path, step: dict[str, Any]) -> None:
    """Put one path into its place; what was there is kept until the end."""
    place, staged, kept = (root / step["path"] for root in (repository.top, work / "files", work / "kept"))
    if step["before"] is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            _link(place, kept)
    if step["after"] is None:
        place.unlink()
        _remove_empty(place.parent, repository.top)
        return
    if step["before"] is not None:
        if not place.is_symlink() and not staged.is_symlink():
            staged.chmod(place.stat().st_mode & 0o666 | staged.stat().st_mode & 0o111)
        _move(staged, place)
        return
    if place.is_dir() and not place.is_symlink():
        _remove_empty_inside(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    _link(staged, place)  # unlike a rename, it fails where something has appeared
    staged.unlink()


def _step_back(repository: Repository, work: Path, step: dict[str, Any]) -> None:
    place, kept = repository.top / step["path"], work / "kept" / step["path"]
    if fingerprint(place) == step["before"]:
        return
    if os.path.lexists(kept):
        place.parent.mkdir(parents=True, exist_ok=True)
        _move(kept, place)
    elif step["before"] is None and fingerprint(place) == step["after"]:
        place.unlink(missing_ok=True)
        _remove_empty(place.parent, repository.top)


def _link(source: Path, target: Path) -> None:
    """Give a file a second place that must be free; a copy where the file system cannot."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        partial = _copy_beside(source, target)
        if os.path.lexists(target):
            partial.unlink()
            raise FileExistsError(errno.EEXIST, "made by another program meanwhile", str(target)) from None
        os.replace(partial, target)


def _move(source: Path, target: Path) -> None:
    """Replace a file in one step, from another file system as well."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        os.replace(_copy_beside(source, target), target)


def _copy_beside(source: Path, target: Path) -> Path:
    """Copy a file to where a rename brings it to its target, and return that place."""
    partial = target.with_name(f".{target.name}.fastproj")
    try:
        shutil.copy2(source, partial, follow_symlinks=False)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    return partial


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove folders that hold nothing any more, as git does."""
    with suppress(OSError):
        while folder != top:
            folder.rmdir()
            folder = folder.parent


def _remove_empty_inside(folder: Path) -> None:
    for root, _, _ in os.walk(folder, topdown=False):
        os.rmdir(root)


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def _entries(repository: Repository) -> str:
    """Return what tells the index's entries from others, whatever else git keeps in it."""
    return hashlib.sha256(repository.git("ls-files", "--stage", "-z")).hexdigest()


def _to_disk(file: Path) -> None:
    if file.is_symlink():
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: Path, text: str) -> None:
    """Write a file so that it is there whole, or not at all, whatever happens."""
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    _to_disk(partial)
    os.replace(partial, file)
    _to_disk(file.parent)
