"""The git repository of a project, and its trees.

Nothing here changes its branch, index or files.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import git
from ..errors import FastprojError
from ..template.answers import ANSWERS_FILE

Tree = dict[str, str]
"""Mode and object id of each file by its path, such as `100644 8ab686ea`."""
Variables = Mapping[str, str | Path]

_VARIABLES = {"LC_ALL": "C", "GIT_LITERAL_PATHSPECS": "1", "GIT_OPTIONAL_LOCKS": "0"}
# Modes and links as rendered, whatever the file system of the project supports.
_AS_RENDERED = {"core.fileMode": "true", "core.symlinks": "true", "core.safecrlf": "false"}


@dataclass(frozen=True)
class Repository:
    """A repository, and the project's folder in it."""

    top: Path
    git_dir: Path
    common_dir: Path
    prefix: str
    """The project's folder, ending in `/`; empty if it is the whole repository."""

    @property
    def where(self) -> str:
        """The project's folder as an argument for git."""
        return self.prefix or "."

    @property
    def answers_file(self) -> str:
        """The path of the answers file."""
        return self.prefix + ANSWERS_FILE

    def run(
        self,
        *arguments: str,
        data: bytes = b"",
        settings: Mapping[str, str] | None = None,
        variables: Variables | None = None,
    ) -> git.Result:
        """Run git and return its result, whatever the exit status."""
        more = {key: str(value) for key, value in (variables or {}).items()}
        folder = Path(more.get("GIT_WORK_TREE", self.top))
        return git.run(
            folder,
            *arguments,
            data=data,
            settings=settings,
            variables=_VARIABLES | more,
        )

    def git(
        self,
        *arguments: str,
        **options: Any,
    ) -> str:
        """Run git with the options of `run` and return its output; raises an error if git fails."""
        done = self.run(*arguments, **options)
        if not done.ok:
            raise FastprojError(
                f"git {arguments[0]} failed in {self.top} ({done.reason}): fix that, then try again"
            )
        return os.fsdecode(done.stdout).removesuffix("\n")

    def lines(self, *arguments: str) -> list[str]:
        """Run git with `-z` among the arguments, and return the parts of its output."""
        return self.git(*arguments).split("\0")[:-1]

    def head(self) -> str:
        """Return the commit that is checked out."""
        done = self.run("rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        if not done.ok:
            raise FastprojError(
                f"{self.top} has no commit yet: git add and commit the project first"
            )
        return done.text.strip()

    def files(self, tree: str) -> Tree:
        """Return the project's files in a commit or tree."""
        where = [self.prefix] if self.prefix else []
        files = {}
        for line in self.lines("ls-tree", "-r", "-z", "--full-tree", tree, "--", *where):
            about, _, path = line.partition("\t")
            mode, _, object_id = about.split(" ")
            files[path] = f"{mode} {object_id}"
        return files

    def renames(
        self,
        before: str,
        after: str,
    ) -> dict[str, str]:
        """Return the renamed paths between two trees, as a merge detects them."""
        options = ["-r", "-z", "-M", "-l32767", "--diff-filter=R"]
        parts = self.lines("diff-tree", *options, before, after)
        return dict(zip(parts[1::3], parts[2::3], strict=True))

    def tree_of(
        self,
        rendering: Path,
        index: Path,
    ) -> str:
        """Return HEAD's tree with the project's folder as rendered."""
        scratch = {"GIT_INDEX_FILE": index, "GIT_WORK_TREE": rendering, "GIT_DIR": self.git_dir}
        # with its attributes
        self.git("read-tree", "--no-sparse-checkout", "HEAD", variables=scratch)
        submodules = [path for path, entry in self.files("HEAD").items() if entry.startswith("16")]
        self.git("update-index", "--force-remove", "--", *submodules, variables=scratch)
        add = ["add", "--all", "--force", "--sparse", "--", self.where]
        self.git(*add, settings=_AS_RENDERED, variables=scratch)
        return self.git("write-tree", variables=scratch)

    def index_info(
        self,
        lines: Sequence[str],
        variables: Variables,
    ) -> None:
        """Write entries to an index, by default to that of the repository."""
        data = os.fsencode("\0".join([*lines, ""]))
        self.git("update-index", "-z", "--index-info", data=data, variables=variables)

    def commit(
        self,
        tree: str,
        files: Tree,
        parents: Sequence[str],
        message: str,
        index: Path,
    ) -> str:
        """Return a new commit of a tree in which the project's files are replaced."""
        scratch = {"GIT_INDEX_FILE": index}
        before = self.files(tree)
        lines = [f"0 {'0' * len(tree)}\t{path}" for path in before.keys() - files.keys()]
        lines += [f"{entry}\t{path}" for path, entry in files.items() if before.get(path) != entry]
        if lines:
            self.git("read-tree", tree, variables=scratch)
            self.index_info(lines, scratch)
            tree = self.git("write-tree", variables=scratch)
        nobody = {"user.name": "fastproj", "user.email": "fastproj@localhost"}
        known = self.run("var", "GIT_COMMITTER_IDENT").ok
        options = [f"-p{parent}" for parent in parents]
        return self.git(
            *["commit-tree", f"{tree}^{{tree}}", *options, "-m", message],
            settings={} if known else nobody,
        )

    def with_crlf(self) -> set[str]:
        """Return the project's files that have CRLF line ends in the index."""
        lines = self.lines("ls-files", "--cached", "--eol", "-z", "--", self.where)
        return {line.partition("\t")[2] for line in lines if line.startswith("i/crlf ")}


def convert_line_ends(file: Path) -> bool:
    """Convert a text with LF line ends to CRLF; return whether it was one."""
    content = file.read_bytes() if file.is_file() and not file.is_symlink() else b"\0"
    is_converted = not re.search(rb"\0|\r\n", content)
    if is_converted:
        file.write_bytes(content.replace(b"\n", b"\r\n"))
    return is_converted


def open_at(folder: Path) -> Repository:
    """Return the repository that contains a folder."""
    git.require_merges()
    paths = ["--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--show-prefix"]
    done = git.run(folder, "rev-parse", *paths, variables={"LC_ALL": "C"})
    if b"not a git repository" in done.stderr:
        raise FastprojError(
            f"{folder} is not in a git repository: git init there, add and commit, then try again"
        )
    if not done.ok:
        raise FastprojError(f"git cannot read the repository of {folder}: {done.reason}")
    if done.stdout.count(b"\n") != len(paths):
        raise FastprojError(
            f"the path of {folder} has a line break, which git's output does not allow: rename it"
        )
    top, git_dir, common_dir, prefix = os.fsdecode(done.stdout).removesuffix("\n").split("\n")
    return Repository(Path(top), Path(git_dir), (folder / common_dir).resolve(), prefix)
