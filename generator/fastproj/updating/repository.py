"""The git repository of a project, and its trees.

Nothing here changes its branch, index or files.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import FastprojError
from ..git import Result, require_merges, run

Tree = dict[str, str]
"""Mode and object id of each file by its path, such as `100644 8ab686ea`."""

_VARIABLES = {"LC_ALL": "C", "GIT_LITERAL_PATHSPECS": "1", "GIT_OPTIONAL_LOCKS": "0"}
# Modes and links as rendered, whatever the file system of the project supports.
_AS_RENDERED = ["-c", "core.fileMode=true", "-c", "core.symlinks=true", "-c", "core.safecrlf=false"]


@dataclass(frozen=True)
class Repository:
    """A repository, and the project's folder in it."""

    top: Path
    git_dir: Path
    common_dir: Path
    prefix: str  # the project's folder, ending in `/`; empty if it is the whole repository

    @property
    def where(self) -> str:
        """The project's folder as an argument for git."""
        return self.prefix or "."

    def run(
        self, *arguments: str, data: bytes = b"", variables: Mapping[str, object] | None = None
    ) -> Result:
        """Run git and return its result, whatever the exit status; `variables` are added to its environment."""
        environment = _VARIABLES | {key: str(value) for key, value in (variables or {}).items()}
        folder = Path(environment.get("GIT_WORK_TREE", self.top))
        return run(folder, *arguments, data=data, variables=environment)

    def git(
        self, *arguments: str, data: bytes = b"", variables: Mapping[str, object] | None = None
    ) -> str:
        """Run git as `run` does and return its output; raises an error if git fails."""
        done = self.run(*arguments, data=data, variables=variables)
        if not done.ok:
            name = next(it for it in arguments if it != "-c" and "=" not in it)
            raise FastprojError(
                f"git {name} failed in {self.top} ({done.reason}): fix that, then try again"
            )
        return os.fsdecode(done.stdout).removesuffix("\n")

    def lines(self, *arguments: str) -> list[str]:
        """Run git with `-z` among the arguments, and return the parts of its output."""
        return self.git(*arguments).split("\0")[:-1]

    def head(self) -> str:
        """Return the commit that is checked out."""
        found = self.run("rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        if not found.ok:
            raise FastprojError(
                f"{self.top} has no commit yet: git add and commit the project first"
            )
        return found.text.strip()

    def files(self, tree: str) -> Tree:
        """Return the project's files in a commit or tree."""
        where = [self.prefix] if self.prefix else []
        lines = (
            line.partition("\t")
            for line in self.lines("ls-tree", "-r", "-z", "--full-tree", tree, "--", *where)
        )
        return {path: re.sub(" .* ", " ", about) for about, _, path in lines}

    def renames(self, before: str, after: str) -> dict[str, str]:
        """Return the renamed paths between two trees, as a merge detects them."""
        parts = self.lines(
            "diff-tree", "-r", "-z", "-M", "-l32767", "--diff-filter=R", before, after
        )
        return dict(zip(parts[1::3], parts[2::3], strict=True))

    def tree_of(self, rendering: Path, index: Path) -> str:
        """Return HEAD's tree with the project's folder as rendered."""
        scratch = {"GIT_INDEX_FILE": index, "GIT_WORK_TREE": rendering, "GIT_DIR": self.git_dir}
        # with its attributes
        self.git("read-tree", "--no-sparse-checkout", "HEAD", variables=scratch)
        submodules = [path for path, entry in self.files("HEAD").items() if entry.startswith("16")]
        self.git("update-index", "--force-remove", "--", *submodules, variables=scratch)
        self.git(
            *_AS_RENDERED,
            "add",
            "--all",
            "--force",
            "--sparse",
            "--",
            self.where,
            variables=scratch,
        )
        return self.git("write-tree", variables=scratch)

    def commit(
        self, tree: str, files: Tree, parents: Sequence[str], message: str, index: Path
    ) -> str:
        """Return a new commit of a tree in which the project's files are replaced."""
        before, scratch = self.files(tree), {"GIT_INDEX_FILE": index}
        lines = [f"0 {'0' * len(tree)}\t{path}" for path in before.keys() - files.keys()]
        lines += [f"{entry}\t{path}" for path, entry in files.items() if before.get(path) != entry]
        if lines:
            self.git("read-tree", tree, variables=scratch)
            data = os.fsencode("\0".join([*lines, ""]))
            self.git("update-index", "-z", "--index-info", data=data, variables=scratch)
            tree = self.git("write-tree", variables=scratch)
        command = [
            "commit-tree",
            f"{tree}^{{tree}}",
            *[f"-p{parent}" for parent in parents],
            "-m",
            message,
        ]
        if self.run("var", "GIT_COMMITTER_IDENT").ok:
            return self.git(*command)
        return self.git("-c", "user.name=fastproj", "-c", "user.email=fastproj@localhost", *command)

    def convert_line_ends(self, old: Path, new: Path, ours: Tree) -> None:
        """Give CRLF line endings to rendered files that the user converted, so that git can merge them line by line."""
        lines = self.lines("ls-files", "--cached", "--eol", "-z", "--", self.where)
        crlf, rendered = (
            {line.partition("\t")[2] for line in lines if line.startswith("i/crlf ")},
            _paths_in(old),
        )
        renamed = rendered - ours.keys() if crlf - rendered else set()  # possibly by the user
        for path in (crlf & rendered) | renamed:
            for file in (old / path, new / path):
                content = file.read_bytes() if file.is_file() and not file.is_symlink() else b"\0"
                if b"\0" not in content and b"\r\n" not in content:
                    file.write_bytes(content.replace(b"\n", b"\r\n"))


def open_at(folder: Path) -> Repository:
    """Return the repository that contains a folder."""
    require_merges()
    paths = ["--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--show-prefix"]
    done = run(folder, "rev-parse", *paths, variables={"LC_ALL": "C"})
    if b"not a git repository" in done.stderr:
        raise FastprojError(
            f"{folder} is not in a git repository: git init there, add and commit, then try again"
        )
    if not done.ok:
        raise FastprojError(f"git cannot read the repository of {folder}: {done.reason}")
    top, git_dir, common_dir, prefix = os.fsdecode(done.stdout).removesuffix("\n").split("\n")
    return Repository(Path(top), Path(git_dir), (folder / common_dir).resolve(), prefix)


def _paths_in(folder: Path) -> set[str]:
    """Return the paths of the files in a folder."""
    return {
        str(it.relative_to(folder)) for it in folder.rglob("*") if it.is_symlink() or it.is_file()
    }
