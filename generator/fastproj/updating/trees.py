"""Read and write the trees of a repository: files, changes, renames, renderings."""

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from ..shared.answers import ANSWERS_FILE
from .repository import Repository

LINK, SUBMODULE = "120000", "160000"


@dataclass(frozen=True)
class Entry:
    """A file in a tree: its mode and the id of its content."""

    mode: str
    oid: str


Tree = dict[str, Entry]
Edits = Mapping[str, Entry | None]
"""Entries to replace in a tree; None removes the path."""
Stages = dict[str, list[tuple[str, str, int]]]
"""For each path in conflict: mode, id of the content and stage, as in git's index."""


@dataclass(frozen=True)
class Change:
    """A path that differs between two trees."""

    path: str
    before: Entry | None
    after: Entry | None


def files(repository: Repository, tree: str) -> Tree:
    """Return the project's files in a commit or tree."""
    found = {}
    where = [repository.prefix] if repository.prefix else []
    for line in repository.lines("ls-tree", "-r", "-z", "--full-tree", tree, "--", *where):
        about, _, path = line.partition("\t")
        mode, _, oid = about.split(" ")
        found[path] = Entry(mode, oid)
    return found


def nested_projects(tree: Tree, answers_path: str) -> Tree:
    """Return the files of other rendered projects, in folders of the project with this answers file."""
    others = (path for path in tree if PurePath(path).name == ANSWERS_FILE and path != answers_path)
    folders = tuple(path.removesuffix(ANSWERS_FILE) for path in others)
    return {path: entry for path, entry in tree.items() if path.startswith(folders)} if folders else {}


def changes(repository: Repository, before: str, after: str) -> list[Change]:
    """Return the paths that differ between two trees."""
    found = []
    parts = repository.lines("diff-tree", "-r", "-z", "--no-renames", "--raw", "--full-index", before, after)
    for about, path in zip(parts[::2], parts[1::2], strict=True):
        old_mode, new_mode, old, new, _ = about.removeprefix(":").split(" ")
        entries = (Entry(mode, oid) if mode != "000000" else None for mode, oid in ((old_mode, old), (new_mode, new)))
        found.append(Change(path, *entries))
    return found


def diff(repository: Repository, before: str, after: str) -> str:
    """Return the changes between two trees as a patch."""
    return repository.git("diff-tree", "-r", "-p", "--no-ext-diff", before, after).decode(errors="replace").rstrip()


def renames(repository: Repository, before: str, after: str) -> dict[str, str]:
    """Return the renamed paths between two trees, as a merge detects them."""
    parts = repository.lines("diff-tree", "-r", "-z", "-M", "-l32767", "--diff-filter=R", before, after)
    return dict(zip(parts[1::3], parts[2::3], strict=True))


def with_crlf(repository: Repository) -> set[str]:
    """Return the project's tracked files in which every line ends in CRLF."""
    lines = repository.lines("ls-files", "--cached", "--eol", "-z", "--", repository.where)
    return {line.partition("\t")[2] for line in lines if line.startswith("i/crlf ")}


def blob(repository: Repository, oid: str) -> bytes:
    """Return the content of a file."""
    return repository.git("cat-file", "blob", oid)


def store(repository: Repository, content: bytes) -> str:
    """Store the content of a file and return its id."""
    return repository.git("hash-object", "-w", "--stdin", "--no-filters", data=content).decode().strip()


def tree_of_rendering(repository: Repository, rendering: Path, index: Path) -> str:
    """Return HEAD's tree with the project's folder replaced by the one in `rendering`; `index` is a scratch file.

    Files are converted as `git add` would in the project, with its attributes.
    """
    borrowed: dict[str, None] = {}
    for path, entry in files(repository, "HEAD").items():
        copy = rendering / path
        if os.path.basename(path) == ".gitattributes" and entry.mode != LINK and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            # The rendering is in UTF-8, as are the files in the repository, whatever the encoding in the work tree.
            copy.write_bytes(re.sub(rb"\sworking-tree-encoding=\S+", b"", blob(repository, entry.oid)))
            borrowed[path] = None
    if repository.prefix:
        repository.git("read-tree", "HEAD", index=index)
    # Modes and links as rendered, whatever the file system of the project supports.
    real = {"core.fileMode": "true", "core.symlinks": "true", "core.sparseCheckout": "false"}
    options = ["add", "--all", "--force", "--", repository.where]
    repository.git(*options, index=index, work_tree=rendering, settings=real)
    tree = repository.git("write-tree", index=index).decode().strip()
    return tree_with(repository, tree, borrowed, index)


def tree_of_work_tree(repository: Repository, also: Tree, index: Path) -> str:
    """Return the tree of the tracked files, and of those in `also`, as they are on disk."""
    repository.git("read-tree", tree_with(repository, "HEAD", also, index), index=index)
    repository.git("add", "--update", "--", repository.where, index=index)
    return repository.git("write-tree", index=index).decode().strip()


def tree_with(repository: Repository, tree: str, edits: Edits, index: Path) -> str:
    """Return a tree with some entries replaced."""
    if not edits:
        return tree
    repository.git("read-tree", tree, index=index)
    edit_index(repository, index, edits, {})
    return repository.git("write-tree", index=index).decode().strip()


def edit_index(repository: Repository, index: Path, edits: Edits, stages: Stages) -> None:
    """Replace entries of an index file, and add unmerged ones."""
    lines = [f"0 {repository.no_object}\t{path}" for path in edits]  # removed first: a file may replace a folder
    lines += [f"{entry.mode} {entry.oid}\t{path}" for path, entry in edits.items() if entry is not None]
    lines += [f"{mode} {oid} {stage}\t{path}" for path, its in stages.items() for mode, oid, stage in its]
    repository.git("update-index", "-z", "--index-info", data=joined(lines), index=index)


def joined(lines: Iterable[str]) -> bytes:
    """Return lines as git reads them with `-z`."""
    return b"".join(os.fsencode(line) + b"\0" for line in lines)


def check_out(repository: Repository, tree: str, changes: Sequence[Change], folder: Path, index: Path) -> None:
    """Write the changed files of a tree to a new folder, and flush them to the disk; `index` is a scratch file.

    They have the permissions of the files that they are to replace.
    """
    folder.mkdir()
    repository.git("read-tree", tree, index=index)
    options = ["checkout-index", "--force", "--quiet", "-z", "--stdin"]
    repository.git(*options, data=joined(it.path for it in changes), index=index, work_tree=folder)
    for it in changes:
        file, replaced = folder / it.path, repository.top / it.path
        if file.is_symlink():
            continue
        if it.before and it.after and replaced.is_file() and not replaced.is_symlink():
            mode = stat.S_IMODE(replaced.stat().st_mode)
            alike = it.before.mode == it.after.mode  # with core.fileMode=false, modes are the user's alone
            file.chmod(mode if alike else mode & 0o666 | file.stat().st_mode & 0o111)
        with file.open("rb") as content:
            os.fsync(content.fileno())
