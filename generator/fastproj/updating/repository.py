"""The git repository of a project. Nothing here changes its branch, index or files."""

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from ..shared.errors import FastprojError
from ..shared.git import OLDEST_TO_MERGE, Result, require, run
from ..shared.lock import locked

TIMEOUT_S = 600.0
LINK, SUBMODULE = "120000", "160000"

# The result of a merge must not depend on the user's settings; no maintenance runs; written objects survive a crash.
_SETTINGS = {
    "core.fsync": "committed,loose-object",
    "core.fsyncMethod": "batch",
    "core.quotePath": "false",
    "core.safecrlf": "false",
    "core.splitIndex": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "merge.conflictStyle": "merge",
    "merge.directoryRenames": "false",
    "merge.renameLimit": "32767",
    "merge.renames": "true",
    "merge.renormalize": "false",
}
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "fastproj"), ("EMAIL", "fastproj@localhost"), ("DATE", "2000-01-01T00:00:00+0000"))
}
_VARIABLES = _IDENTITY | {"LC_ALL": "C", "GIT_LITERAL_PATHSPECS": "1", "GIT_OPTIONAL_LOCKS": "0"}
_IN_PROGRESS = {
    "MERGE_HEAD": ("merge", "git merge --abort"),
    "CHERRY_PICK_HEAD": ("cherry-pick", "git cherry-pick --abort"),
    "REVERT_HEAD": ("revert", "git revert --abort"),
    "rebase-merge": ("rebase", "git rebase --abort"),
    "rebase-apply": ("rebase", "git rebase --abort"),
    "BISECT_LOG": ("bisect", "git bisect reset"),
}


@dataclass(frozen=True)
class Entry:
    """A file in a tree: its mode and the id of its content."""

    mode: str
    oid: str


Tree = dict[str, Entry]
Edits = Mapping[str, Entry | None]
"""Entries to replace in a tree; None removes the path."""


@dataclass(frozen=True)
class Change:
    """A path that differs between two trees."""

    path: str
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True)
class Head:
    """The commit that is checked out, its tree, and the branch (`HEAD` if detached)."""

    commit: str
    tree: str
    branch: str


@dataclass(frozen=True)
class Repository:
    """A repository and the project's folder in it."""

    top: Path
    git_dir: Path
    index: Path
    objects: Path
    """Where new objects are written."""
    object_format: str
    prefix: str
    """The project's folder, ending in `/`; empty if it is the whole repository."""

    @property
    def no_object(self) -> str:
        """The id that stands for no object."""
        return "0" * (64 if self.object_format == "sha256" else 40)

    @property
    def where(self) -> str:
        """The project's folder as an argument for git."""
        return self.prefix or "."

    def git(
        self,
        *arguments: str,
        data: bytes = b"",
        index: Path | None = None,
        work_tree: Path | None = None,
        allowed: tuple[int, ...] = (0,),
    ) -> bytes:
        """Run git and return its output.

        Raises:
            FastprojError: the exit status is not one of `allowed`.
        """
        done = self.run(*arguments, data=data, index=index, work_tree=work_tree)
        if done.returncode not in allowed:
            raise FastprojError(f"git {arguments[0]} failed in {self.top} ({done.reason}): fix that, then try again")
        return done.stdout

    def run(
        self, *arguments: str, data: bytes = b"", index: Path | None = None, work_tree: Path | None = None
    ) -> Result:
        """Run git and return its result, whatever the exit status."""
        variables = _VARIABLES | {"GIT_OBJECT_DIRECTORY": str(self.objects)}
        if index is not None:
            variables["GIT_INDEX_FILE"] = str(index)
        if work_tree is not None:
            variables |= {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(work_tree)}
        where = work_tree or self.top
        return run(where, *arguments, data=data, settings=_SETTINGS, variables=variables, timeout_s=TIMEOUT_S)

    def with_objects_in(self, folder: Path) -> "Repository":
        """Return the same repository, which writes new objects to another folder."""
        (folder / "info").mkdir(parents=True)
        (folder / "info/alternates").write_bytes(os.fsencode(self.objects.resolve()) + b"\n")
        return replace(self, objects=folder)

    def with_refs_in(self, folder: Path) -> "Repository":
        """Return a repository with the same objects and work tree, but its own refs; there are none yet."""
        for name in ("info", "refs"):
            (folder / name).mkdir(parents=True)
        (folder / "HEAD").write_text("ref: refs/heads/none\n")
        text = f"[core]\nrepositoryFormatVersion = 1\n[extensions]\nobjectFormat = {self.object_format}\n"
        (folder / "config").write_text(text)
        return replace(self, git_dir=folder)

    def locked(self) -> AbstractContextManager[bool]:
        """Hold the lock that lets only one fastproj change this repository.

        Raises:
            FastprojError: another one is running.
        """
        return locked(self.git_dir, f"another fastproj is running in {self.top}: wait until it is done")

    def head(self) -> Head:
        """Return what is checked out.

        Raises:
            FastprojError: there is no commit yet.
        """
        found = self.run("rev-parse", "--quiet", "HEAD^{commit}", "HEAD^{tree}", "--symbolic-full-name", "HEAD")
        if not found.ok:
            raise FastprojError(f"{self.top} has no commit yet: git add and commit the project first")
        return Head(*found.text.split())

    def check_ready(self, *also: str) -> None:
        """Check that an update can begin: nothing in progress, no uncommitted change in the project or in `also`.

        Raises:
            FastprojError: it cannot.
        """
        self.head()
        for name, (what, way_out) in _IN_PROGRESS.items():
            if os.path.lexists(self.git_dir / name):
                raise FastprojError(f"a {what} is in progress in {self.top}: finish it, or stop it with `{way_out}`")
        lock = self.index.with_name(self.index.name + ".lock")
        if os.path.lexists(lock):
            raise FastprojError(f"another git is running in {self.top}: wait for it, or remove {lock} if it crashed")
        changed = self.changed(self.where, *also)
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise FastprojError(
                f"{changed[0]}{more} changed since the last commit: commit or git stash, then try again"
            )

    def changed(self, *where: str, index: Path | None = None) -> list[str]:
        """Return the tracked files, of those paths, that differ from the last commit."""
        how = ["--porcelain", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules=dirty"]
        found = self.git("status", *how, "--", *where, index=index)
        return [os.fsdecode(line[3:]) for line in found.split(b"\0") if line]

    def hidden(self) -> set[str]:
        """Return the project's files that git was told to regard as unchanged, or not to check out."""
        lines = self.git("ls-files", "-v", "-z", "--", self.where).split(b"\0")
        return {os.fsdecode(line[2:]) for line in lines if line and (line[:1].islower() or line[:1] == b"S")}

    def files(self, tree: str) -> Tree:
        """Return the project's files in a commit or tree."""
        found = {}
        lines = self.git("ls-tree", "-r", "-z", "--full-tree", tree, "--", *([self.prefix] if self.prefix else []))
        for line in filter(None, lines.split(b"\0")):
            about, _, path = line.partition(b"\t")
            mode, _, oid = about.decode().split(" ")
            found[os.fsdecode(path)] = Entry(mode, oid)
        return found

    def changes(self, before: str, after: str) -> list[Change]:
        """Return the paths that differ between two trees."""
        found = []
        parts = self.git("diff-tree", "-r", "-z", "--no-renames", "--raw", "--full-index", before, after).split(b"\0")
        for about, path in zip(parts[::2], parts[1::2], strict=False):
            old_mode, new_mode, old, new, _ = about.decode().removeprefix(":").split(" ")
            entries = (
                Entry(mode, oid) if mode != "000000" else None for mode, oid in ((old_mode, old), (new_mode, new))
            )
            found.append(Change(os.fsdecode(path), *entries))
        return found

    def renames(self, before: str, after: str) -> dict[str, str]:
        """Return the renamed paths between two trees, as a merge detects them."""
        parts = self.git("diff-tree", "-r", "-z", "-M", "-l32767", "--diff-filter=R", before, after).split(b"\0")
        return {os.fsdecode(old): os.fsdecode(new) for _, old, new in zip(*[iter(parts)] * 3, strict=False)}

    def with_crlf(self) -> set[str]:
        """Return the project's tracked files in which every line ends in CRLF."""
        lines = self.git("ls-files", "--cached", "--eol", "-z", "--", self.where).split(b"\0")
        return {os.fsdecode(line.partition(b"\t")[2]) for line in lines if line.startswith(b"i/crlf ")}

    def blob(self, oid: str) -> bytes:
        """Return the content of a file."""
        return self.git("cat-file", "blob", oid)

    def store(self, content: bytes) -> str:
        """Store the content of a file and return its id."""
        return self.git("hash-object", "-w", "--stdin", "--no-filters", data=content).decode().strip()

    def tree_of_rendering(self, rendering: Path, index: Path) -> str:
        """Return HEAD's tree with the project's folder replaced by the one in `rendering`; `index` is a scratch file.

        Files are converted as `git add` would in the project, with its attributes.
        """
        borrowed: dict[str, None] = {}
        for path, entry in self.files("HEAD").items():
            copy = rendering / path
            if os.path.basename(path) == ".gitattributes" and entry.mode != LINK and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(self.blob(entry.oid))
                borrowed[path] = None
        if self.prefix:
            self.git("read-tree", "HEAD", index=index)
        # Modes and links as rendered, whatever the file system of the project supports.
        real = ["-c", "core.fileMode=true", "-c", "core.symlinks=true", "-c", "core.sparseCheckout=false"]
        self.git(*real, "add", "--all", "--force", "--", self.where, index=index, work_tree=rendering)
        tree = self.git("write-tree", index=index).decode().strip()
        return self.tree_with(tree, borrowed, index)

    def tree_of_work_tree(self, also: Tree, index: Path) -> str:
        """Return the tree of the tracked files, and of those in `also`, as they are on disk."""
        self.git("read-tree", self.tree_with("HEAD", also, index), index=index)
        self.git("add", "--update", "--", self.where, index=index)
        return self.git("write-tree", index=index).decode().strip()

    def tree_with(self, tree: str, edits: Edits, index: Path) -> str:
        """Return a tree with some entries replaced."""
        if not edits:
            return tree
        self.git("read-tree", tree, index=index)
        self.edit_index(index, edits)
        return self.git("write-tree", index=index).decode().strip()

    def edit_index(self, index: Path, edits: Edits, stages: Iterable[tuple[str, Entry, int]] = ()) -> None:
        """Replace entries of an index file, and add unmerged ones: path, entry and stage."""
        lines = [f"0 {self.no_object}\t{path}" for path in edits]  # removed first: a file may replace a folder
        lines += [f"{entry.mode} {entry.oid}\t{path}" for path, entry in edits.items() if entry is not None]
        lines += [f"{entry.mode} {entry.oid} {stage}\t{path}" for path, entry, stage in stages]
        self.git("update-index", "-z", "--index-info", data=joined(lines), index=index)


def open_at(folder: Path) -> Repository:
    """Return the repository that contains a folder.

    Raises:
        FastprojError: there is none, git is missing or too old, or git refuses to read it.
    """
    require(OLDEST_TO_MERGE)
    paths = ("--show-toplevel", "--absolute-git-dir", "--git-path", "index", "--git-path", "objects")
    done = run(folder, "rev-parse", *paths, "--show-object-format", "--show-prefix", variables={"LC_ALL": "C"})
    if b"not a git repository" in done.stderr:
        way_out = "git init there, add and commit, then try again"
        raise FastprojError(f"{folder} is not in a git repository, which updates need: {way_out}")
    if not done.ok:
        raise FastprojError(f"git cannot read the repository of {folder}: {done.reason}")
    found = os.fsdecode(done.stdout).removesuffix("\n").split("\n")
    if len(found) != 6:
        raise FastprojError(f"the path of {folder} has a line break in it: move it to one without")
    top, git_dir, index, objects, object_format, prefix = found
    return Repository(Path(top), Path(git_dir), folder / index, folder / objects, object_format, prefix)


def joined(lines: Iterable[str]) -> bytes:
    """Return lines as git reads them with `-z`."""
    return b"".join(os.fsencode(line) + b"\0" for line in lines)
