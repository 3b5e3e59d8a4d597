"""The git repository of a project, and its trees. Nothing here changes its branch, index or files."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..shared.errors import FastprojError
from ..shared.git import OLDEST_TO_MERGE, Result, require, run

Tree = dict[str, str]
"""Mode and object id of each file by its path, such as `100644 8ab686ea`."""
SUBMODULE = "160000"

_VARIABLES = {"LC_ALL": "C", "GIT_LITERAL_PATHSPECS": "1", "GIT_OPTIONAL_LOCKS": "0"}
_IN_PROGRESS = {"MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert"}
_IN_PROGRESS |= {"rebase-merge": "rebase", "rebase-apply": "rebase", "BISECT_LOG": "bisect"}


@dataclass(frozen=True)
class Repository:
    """A repository and the project's folder in it."""

    top: Path
    git_dir: Path
    common_dir: Path
    objects: Path
    """Where new objects are written."""
    prefix: str
    """The project's folder, ending in `/`; empty if it is the whole repository."""

    def git(self, *arguments: str, **options: Any) -> bytes:
        """Run git with the options of `run`, and return its output.

        Raises:
            FastprojError: it failed.
        """
        done = self.run(*arguments, **options)
        if not done.ok:
            raise FastprojError(f"git {arguments[0]} failed in {self.top} ({done.reason}): fix that, then try again")
        return done.stdout

    def lines(self, *arguments: str) -> list[str]:
        """Run git with `-z` among the arguments, and return the parts of its output."""
        return os.fsdecode(self.git(*arguments)).split("\0")[:-1]

    def run(
        self, *arguments: str, work_tree: Path | None = None, git_dir: Path | None = None, **options: Any
    ) -> Result:
        """Run git, by default in the repository, and return its result, whatever the exit status."""
        variables = _VARIABLES | {"GIT_OBJECT_DIRECTORY": str(self.objects)} | options.pop("variables", {})
        if work_tree or git_dir:
            variables |= {"GIT_DIR": str(git_dir or self.git_dir), "GIT_WORK_TREE": str(work_tree or self.top)}
        return run(work_tree or self.top, *arguments, variables=variables, timeout_s=600.0, **options)

    def with_objects_in(self, folder: Path) -> "Repository":
        """Return the same repository, which writes new objects to another folder."""
        (folder / "info").mkdir(parents=True)
        (folder / "info/alternates").write_bytes(os.fsencode(self.objects.resolve()) + b"\n")
        return replace(self, objects=folder)

    def check_ready(self) -> str:
        """Return the commit that is checked out, after checking that nothing is in progress or uncommitted.

        Raises:
            FastprojError: an update cannot begin.
        """
        for name, what in _IN_PROGRESS.items():
            if os.path.lexists(self.git_dir / name):
                raise FastprojError(f"a {what} is in progress in {self.top}: finish or abort it, then try again")
        if os.path.lexists(self.git_dir / "index.lock"):
            lock = self.git_dir / "index.lock"
            raise FastprojError(f"another git is running in {self.top}: wait for it, or remove {lock} if it crashed")
        commit = self.head()
        how = ["--porcelain", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules=dirty"]
        changed = [line[3:] for line in self.lines("status", *how, "--", self.prefix or ".")]
        changed += self.lines("diff-index", "--cached", "--name-only", "-z", commit)  # which `--abort` would remove
        if changed:
            raise FastprojError(f"{changed[0]} changed since the last commit: commit or git stash, then try again")
        return commit

    def head(self) -> str:
        """Return the commit that is checked out.

        Raises:
            FastprojError: there is none yet.
        """
        found = self.run("rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        if not found.ok:
            raise FastprojError(f"{self.top} has no commit yet: git add and commit the project first")
        return found.text.strip()

    def files(self, tree: str) -> Tree:
        """Return the project's files in a commit or tree."""
        where = [self.prefix] if self.prefix else []
        lines = (line.partition("\t") for line in self.lines("ls-tree", "-r", "-z", "--full-tree", tree, "--", *where))
        return {path: f"{about.split()[0]} {about.split()[2]}" for about, _, path in lines}

    def renames(self, before: str, after: str) -> dict[str, str]:
        """Return the renamed paths between two trees, as a merge detects them."""
        parts = self.lines("diff-tree", "-r", "-z", "-M", "-l32767", "--diff-filter=R", before, after)
        return dict(zip(parts[1::3], parts[2::3], strict=True))

    def blob(self, entry: str) -> bytes:
        """Return the content of a file."""
        return self.git("cat-file", "blob", entry.split()[1])

    def tree_with(self, tree: str, edits: dict[str, bytes], index: Path) -> str:
        """Return a tree in which some files have another content; `index` is a scratch file."""
        if not edits:
            return tree
        variables, files = {"GIT_INDEX_FILE": str(index)}, self.files(tree)
        self.git("read-tree", tree, variables=variables)
        lines = []
        for path, content in edits.items():
            oid = self.git("hash-object", "-w", "--stdin", "--no-filters", data=content).decode().strip()
            lines.append(f"{files[path].split()[0]} {oid}\t{path}")
        data = os.fsencode("\0".join([*lines, ""]))
        self.git("update-index", "-z", "--index-info", data=data, variables=variables)
        return self.git("write-tree", variables=variables).decode().strip()

    def tree_of(self, rendering: Path, index: Path) -> str:
        """Return HEAD's tree with the project's folder replaced by the one in `rendering`; `index` is a scratch file.

        Files are converted as `git add` would in the project, with its attributes.
        """
        borrowed = []
        for path, entry in self.files("HEAD").items():
            copy = rendering / path
            if copy.name == ".gitattributes" and entry.startswith("100") and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                # A rendering is in UTF-8, whatever the encoding in the work tree.
                copy.write_bytes(re.sub(rb"\sworking-tree-encoding=\S+", b"", self.blob(entry)))
                borrowed.append(path)
        options: dict[str, Any] = {"variables": {"GIT_INDEX_FILE": str(index)}, "work_tree": rendering}
        if self.prefix:
            self.git("read-tree", "HEAD", **options)
        # Modes and links as rendered, whatever the file system of the project supports.
        real = {
            "core.fileMode": "true",
            "core.symlinks": "true",
            "core.sparseCheckout": "false",
            "core.safecrlf": "false",
        }
        self.git("add", "--all", "--force", "--", self.prefix or ".", settings=real, **options)
        if borrowed:
            self.git("rm", "--cached", "--quiet", "--", *borrowed, **options)
        return self.git("write-tree", **options).decode().strip()


def open_at(folder: Path) -> Repository:
    """Return the repository that contains a folder.

    Raises:
        FastprojError: there is none, git is missing or too old, or git refuses to read it.
    """
    require(OLDEST_TO_MERGE)
    paths = ["--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--git-path", "objects", "--show-prefix"]
    done = run(folder, "rev-parse", *paths, variables={"LC_ALL": "C"})
    if b"not a git repository" in done.stderr:
        way_out = "git init there, add and commit, then try again"
        raise FastprojError(f"{folder} is not in a git repository, which updates need: {way_out}")
    if not done.ok:
        raise FastprojError(f"git cannot read the repository of {folder}: {done.reason}")
    found = os.fsdecode(done.stdout).removesuffix("\n").split("\n")
    if len(found) != 5:
        raise FastprojError(f"the path of {folder} has a line break in it: move it to one without")
    top, git_dir, common_dir, objects, prefix = found
    return Repository(Path(top), Path(git_dir), (folder / common_dir).resolve(), folder / objects, prefix)
