"""The git repository that a project lies in. Nothing here changes its branch, its index or its files."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from ..shared.errors import FastprojError
from ..shared.git import OLDEST_TO_MERGE, Result, require, run
from ..shared.lock import locked

TIMEOUT_S = 600.0
LINK, SUBMODULE = "120000", "160000"

# What a merge comes to must not depend on the user's settings, and no hook or upkeep may run.
_SETTINGS = {
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
_UNDER_WAY = {
    "MERGE_HEAD": ("merge", "git merge --abort"),
    "CHERRY_PICK_HEAD": ("cherry-pick", "git cherry-pick --abort"),
    "REVERT_HEAD": ("revert", "git revert --abort"),
    "rebase-merge": ("rebase", "git rebase --abort"),
    "rebase-apply": ("rebase", "git rebase --abort"),
    "BISECT_LOG": ("bisect", "git bisect reset"),
}


@dataclass(frozen=True)
class Entry:
    """What git knows of a file in a tree."""

    mode: str
    oid: str


Tree = dict[str, Entry]


@dataclass(frozen=True)
class Repository:
    """A repository, and where in it the project lies."""

    top: Path
    git_dir: Path
    index: Path
    prefix: str
    """The project's folder in it, with `/` at its end; empty where the project is all of it."""
    objects: Path | None = None
    """Where new objects go, if not to the repository itself."""

    @property
    def where(self) -> str:
        """The project's folder as a path for git's command line."""
        return self.prefix or "."

    def git(
        self,
        *arguments: str,
        data: bytes = b"",
        index: Path | None = None,
        work_tree: Path | None = None,
        allowed: tuple[int, ...] = (0,),
    ) -> bytes:
        """Run git and return what it printed.

        Raises:
            FastprojError: it cannot be started, or its status is none of those that are allowed.
        """
        done = self._run(arguments, data, index, work_tree)
        if done.returncode not in allowed:
            raise FastprojError(f"git {arguments[0]} failed in {self.top} ({done.reason}): fix that, then try again")
        return done.stdout

    def says(self, *arguments: str) -> bool:
        """Return whether git agrees."""
        return self._run(arguments).ok

    def _run(
        self, arguments: tuple[str, ...], data: bytes = b"", index: Path | None = None, work_tree: Path | None = None
    ) -> Result:
        variables = _IDENTITY | {"LC_ALL": "C", "GIT_LITERAL_PATHSPECS": "1", "GIT_OPTIONAL_LOCKS": "0"}
        if index is not None:
            variables["GIT_INDEX_FILE"] = str(index)
        if work_tree is not None:
            variables |= {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(work_tree)}
        if self.objects is not None:
            variables["GIT_OBJECT_DIRECTORY"] = str(self.objects)
        folder = work_tree or self.top
        return run(folder, *arguments, data=data, settings=_SETTINGS, variables=variables, timeout_s=TIMEOUT_S)

    def with_objects_in(self, folder: Path) -> "Repository":
        """Return the same repository, with whatever is written to it kept in a folder beside it."""
        objects = os.fsdecode(self.git("rev-parse", "--git-path", "objects")).removesuffix("\n")
        (folder / "info").mkdir(parents=True)
        (folder / "info/alternates").write_bytes(os.fsencode((self.top / objects).resolve()) + b"\n")
        return replace(self, objects=folder)

    def locked(self) -> AbstractContextManager[bool]:
        """Hold the lock that lets only one fastproj work in this repository.

        Raises:
            FastprojError: another one is running.
        """
        return locked(self.git_dir, f"another fastproj is running in {self.top}: wait until it is done")

    def check_commit(self) -> None:
        """Make sure that there is a commit.

        Raises:
            FastprojError: there is none yet.
        """
        if not self.says("rev-parse", "--quiet", "--verify", "HEAD^{commit}"):
            raise FastprojError(f"{self.top} has no commit yet: git add and commit the project first")

    def check_ready(self) -> None:
        """Make sure that an update can begin: a commit, nothing under way, no change in the project's folder.

        Raises:
            FastprojError: it cannot; says why, and the way out.
        """
        self.check_commit()
        for name, (what, way_out) in _UNDER_WAY.items():
            if os.path.lexists(self.git_dir / name):
                raise FastprojError(f"a {what} is under way in {self.top}: finish it, or stop it with `{way_out}`")
        lock = self.index.with_name(self.index.name + ".lock")
        if os.path.lexists(lock):
            raise FastprojError(f"another git is at work in {self.top}: wait for it, or remove {lock} if it died")
        changed = self._changed()
        if changed:
            raise FastprojError(f"{_some(changed)} changed since the last commit: commit, or git stash, then try again")

    def _changed(self) -> list[str]:
        """Return tracked files of the project that differ from the last commit."""
        how = ["--untracked-files=no", "--no-renames", "--ignore-submodules=dirty"]
        found = self.git("status", "--porcelain", "-z", *how, "--", self.where)
        return [os.fsdecode(line[3:]) for line in found.split(b"\0") if line]

    def unwatched(self) -> set[str]:
        """Return tracked files of the project whose changes git was told not to see, or not to check out."""
        lines = self.git("ls-files", "-v", "-z", "--", self.where).split(b"\0")
        return {os.fsdecode(line[2:]) for line in lines if line and (line[:1].islower() or line[:1] == b"S")}

    def tree_of_head(self) -> str:
        """Return the tree of the last commit."""
        return self.git("rev-parse", "HEAD^{tree}").decode().strip()

    def tree(self, of: str, *paths: str) -> Tree:
        """Return the files of a commit or tree."""
        found = {}
        for line in filter(None, self.git("ls-tree", "-r", "-z", "--full-tree", of, "--", *paths).split(b"\0")):
            about, _, path = line.partition(b"\t")
            mode, _, oid = about.decode().split(" ")
            found[os.fsdecode(path)] = Entry(mode, oid)
        return found

    def files_of_project(self, of: str) -> Tree:
        """Return those of a commit or tree that lie in the project's folder."""
        return self.tree(of, *([self.prefix] if self.prefix else []))

    def differences(self, before: str, after: str) -> dict[str, tuple[Entry | None, Entry | None]]:
        """Return each path that differs between two trees, with what it was and is."""
        found: dict[str, tuple[Entry | None, Entry | None]] = {}
        parts = self.git("diff-tree", "-r", "-z", "--no-renames", "--raw", "--full-index", before, after).split(b"\0")
        for about, path in zip(parts[::2], parts[1::2], strict=False):
            mode_before, mode_after, oid_before, oid_after, _ = about.decode().removeprefix(":").split(" ")
            old = Entry(mode_before, oid_before) if mode_before != "000000" else None
            new = Entry(mode_after, oid_after) if mode_after != "000000" else None
            found[os.fsdecode(path)] = (old, new)
        return found

    def renames(self, before: str, after: str) -> dict[str, str]:
        """Return the renamed paths between two trees, as a merge sees them."""
        parts = self.git("diff-tree", "-r", "-z", "-M", "-l32767", "--diff-filter=R", before, after).split(b"\0")
        return {os.fsdecode(old): os.fsdecode(new) for _, old, new in zip(*[iter(parts)] * 3, strict=False)}

    def with_crlf(self) -> set[str]:
        """Return the project's tracked files whose lines all end with CRLF in the index."""
        lines = self.git("ls-files", "--cached", "--eol", "-z", "--", self.where).split(b"\0")
        return {os.fsdecode(line.partition(b"\t")[2]) for line in lines if line.startswith(b"i/crlf ")}

    def blob(self, oid: str) -> bytes:
        """Return a file's content."""
        return self.git("cat-file", "blob", oid)

    def store(self, content: bytes) -> str:
        """Keep a file's content, and return its name."""
        return self.git("hash-object", "-w", "--stdin", "--no-filters", data=content).decode().strip()

    def tree_with_rendering(self, rendering: Path, index: Path) -> str:
        """Return the last commit's tree with the project's folder replaced by the one under `rendering`.

        `index` is a scratch file. Files are taken in as `git add` would in the project, with its attributes.
        """
        borrowed: dict[str, Entry | None] = {}
        for path, entry in self.files_of_project("HEAD").items():
            copy = rendering / path
            if os.path.basename(path) == ".gitattributes" and entry.mode != LINK and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(self.blob(entry.oid))
                borrowed[path] = None
        # The rendering's modes and links count, whatever the project's file system can hold.
        real = ["-c", "core.fileMode=true", "-c", "core.symlinks=true", "-c", "core.sparseCheckout=false"]
        if self.prefix:
            self.git("read-tree", "HEAD", index=index)
            leave = ["rm", "-r", "--cached", "--quiet", "--force", "--ignore-unmatch"]
            self.git(*real, *leave, "--", self.prefix, index=index)
        else:
            self.git("read-tree", "--empty", index=index)
        self.git(*real, "add", "--all", "--force", "--", self.where, index=index, work_tree=rendering)
        tree = self.git("write-tree", index=index).decode().strip()
        return self.tree_with(tree, borrowed, index)  # the user's attributes count, and are no file of the template's

    def tree_of_work_tree(self, also: Tree, index: Path) -> str:
        """Return the tree of all tracked files, and of those in `also`, as they lie on the disk."""
        self.git("read-tree", self.tree_with("HEAD", also, index), index=index)
        self.git("add", "--update", "--", self.where, index=index)
        return self.git("write-tree", index=index).decode().strip()

    def tree_with(self, tree: str, changes: Mapping[str, Entry | None], index: Path) -> str:
        """Return a tree with some entries replaced, or left out where they are None."""
        if not changes:
            return tree
        self.git("read-tree", tree, index=index)
        nothing = "0" * len(self.tree_of_head())
        # What leaves goes first, as a file may take a folder's place.
        lines = [f"0 {nothing}\t{path}" for path, entry in changes.items() if entry is None]
        lines += [f"{entry.mode} {entry.oid}\t{path}" for path, entry in changes.items() if entry is not None]
        self.git("update-index", "-z", "--index-info", data=joined(lines), index=index)
        return self.git("write-tree", index=index).decode().strip()

    def commit(self, tree: str, *parents: str) -> str:
        """Make a commit that no branch has."""
        options = [option for parent in parents for option in ("-p", parent)]
        return self.git("commit-tree", tree, "-m", "fastproj", *options).decode().strip()


def open_at(folder: Path) -> Repository:
    """Return the repository that a folder lies in.

    Raises:
        FastprojError: there is none, git is missing or too old, or it does not want to read it.
    """
    require(OLDEST_TO_MERGE)
    questions = ("--show-toplevel", "--absolute-git-dir", "--show-prefix", "--git-path", "index")
    done = run(folder, "rev-parse", *questions, variables={"LC_ALL": "C"})
    if not done.ok:
        way_out = "git init there, add and commit, then try again"
        if b"not a git repository" in done.stderr:
            raise FastprojError(f"{folder} is in no git repository, and updates are merged by git: {way_out}")
        raise FastprojError(f"git cannot read the repository of {folder}: {done.reason}")
    told = os.fsdecode(done.stdout).removesuffix("\n").split("\n")
    if len(told) != len(questions) - 1:
        raise FastprojError(f"the path of {folder} has a line break in it: move it to one without")
    top, git_dir, prefix, index = told
    return Repository(Path(top), Path(git_dir), folder / index, prefix)


def joined(lines: list[str]) -> bytes:
    """Return lines as git reads them with `-z`."""
    return b"".join(os.fsencode(line) + b"\0" for line in lines)


def _some(paths: list[str]) -> str:
    """Name the first of many."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
