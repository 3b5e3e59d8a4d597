"""The git repository of a project. Nothing here changes its branch, index or files."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..shared.errors import FastprojError
from ..shared.git import OLDEST_TO_MERGE, Result, require, run
from ..shared.lock import locked

TIMEOUT_S = 600.0

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
_VARIABLES = {"LC_ALL": "C", "GIT_LITERAL_PATHSPECS": "1", "GIT_OPTIONAL_LOCKS": "0"}
_IN_PROGRESS = {
    "MERGE_HEAD": ("merge", "git merge --abort"),
    "CHERRY_PICK_HEAD": ("cherry-pick", "git cherry-pick --abort"),
    "REVERT_HEAD": ("revert", "git revert --abort"),
    "rebase-merge": ("rebase", "git rebase --abort"),
    "rebase-apply": ("rebase", "git rebase --abort"),
    "BISECT_LOG": ("bisect", "git bisect reset"),
}


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
    def index_lock(self) -> Path:
        """The file with which git locks the index."""
        return self.index.with_name(f"{self.index.name}.lock")

    @property
    def where(self) -> str:
        """The project's folder as an argument for git."""
        return self.prefix or "."

    def git(self, *arguments: str, allowed: tuple[int, ...] = (0,), **options: Any) -> bytes:
        """Run git with the options of `run`, and return its output.

        Raises:
            FastprojError: the exit status is not one of `allowed`.
        """
        done = self.run(*arguments, **options)
        if done.returncode not in allowed:
            raise FastprojError(f"git {arguments[0]} failed in {self.top} ({done.reason}): fix that, then try again")
        return done.stdout

    def lines(self, *arguments: str, **options: Any) -> list[str]:
        """Run git with `-z` among the arguments, and return the parts of its output, which are not in quotes then."""
        return os.fsdecode(self.git(*arguments, **options)).split("\0")[:-1]

    def run(
        self,
        *arguments: str,
        data: bytes = b"",
        index: Path | None = None,
        work_tree: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> Result:
        """Run git and return its result, whatever the exit status."""
        variables = _VARIABLES | {"GIT_OBJECT_DIRECTORY": str(self.objects)}
        if index is not None:
            variables["GIT_INDEX_FILE"] = str(index)
        if work_tree is not None:
            variables |= {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(work_tree)}
        where = work_tree or self.top
        return run(
            where, *arguments, data=data, settings=_SETTINGS | dict(settings), variables=variables, timeout_s=TIMEOUT_S
        )

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

    def check_ready(self) -> Head:
        """Check that an update can begin (nothing in progress, no uncommitted change in the project), and return HEAD.

        Raises:
            FastprojError: it cannot.
        """
        head = self.head()
        for name, (what, way_out) in _IN_PROGRESS.items():
            if os.path.lexists(self.git_dir / name):
                raise FastprojError(f"a {what} is in progress in {self.top}: finish it, or stop it with `{way_out}`")
        if os.path.lexists(self.index_lock):
            raise self.index_is_locked()
        changed = list(self.changed())
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise FastprojError(
                f"{changed[0]}{more} changed since the last commit: commit or git stash, then try again"
            )
        return head

    def index_is_locked(self) -> FastprojError:
        """Return the error for an index that git has locked."""
        way_out = f"wait for it, or remove {self.index_lock} if it crashed"
        return FastprojError(f"another git is running in {self.top}: {way_out}")

    def changed(self) -> dict[str, str]:
        """Return the project's tracked files that differ from the last commit, with their `XY` of `git status`."""
        how = ["--porcelain", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules=dirty"]
        return {line[3:]: line[:2] for line in self.lines("status", *how, "--", self.where)}

    def index_digest(self, index: Path | None = None) -> str:
        """Return a digest of the project's entries in the index, or in another index file."""
        entries = self.git("ls-files", "--stage", "-z", "--", self.where, index=index)
        return hashlib.sha256(entries).hexdigest()

    def hidden(self) -> set[str]:
        """Return the project's files that git was told to regard as unchanged, or not to check out."""
        lines = self.lines("ls-files", "-v", "-z", "--", self.where)
        return {line[2:] for line in lines if line[0].islower() or line[0] == "S"}


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
