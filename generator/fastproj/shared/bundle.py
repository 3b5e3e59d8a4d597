"""The template as a git bundle, with one parentless commit per release."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.version import Version

from . import git
from .errors import FastprojError
from .scratch import scratch_folder, temporary_folder
from .versions import declared_version, is_release, tag_of, unreleased, version_of

# An entry contains these, and nothing else of the repository.
_CONTENT = ("copier.yml", "template")

# Fixed, so that the same tree is the same commit on every machine and in every later build.
_IDENTITY = {"NAME": "fastproj", "EMAIL": "fastproj@localhost", "DATE": "@946684800 +0000"}
_TIMEOUT_S = 600.0


def entries(bundle: Path) -> dict[str, str]:
    """Return the versions in a bundle and the commit of each; in our own bundles the newest comes last.

    The checksum at the end shows whether the file is complete, in a millisecond and without git.

    Raises:
        FastprojError: it is not a git bundle, or incomplete.
        OSError: it cannot be read.
    """
    if bundle.exists() and not bundle.is_file():
        raise FastprojError(f"{bundle} is not a file")  # reading a pipe, for example, would wait forever
    head, separator, pack = bundle.read_bytes().partition(b"\n\n")
    first, *lines = head.decode(errors="replace").split("\n")
    if not re.fullmatch(r"# v[23] git bundle", first) or not separator:
        raise FastprojError(f"{bundle} is not a git bundle")
    if hashlib.sha1(pack[:-20], usedforsecurity=False).digest() != pack[-20:]:
        raise FastprojError(f"{bundle} is damaged or incomplete")
    pairs = [line.partition(" refs/tags/v")[::2] for line in lines]
    return {tag: commit for commit, tag in pairs if (version := version_of(tag)) and str(version) == tag}


def build(root: Path, target: Path) -> None:
    """Write the bundle of the template in `root`: each release of its history, and the current files.

    The bundle replaces `target` atomically; the same files give the same bytes.

    Raises:
        FastprojError: git is missing or fails, or `pyproject.toml` has no version.
        OSError: the target cannot be written.
    """
    with object_store(target.absolute().parent) as store:
        store.write(store.collect(root.absolute()), target)


def releases(root: Path) -> dict[str, str]:
    """Return the releases in the history of a source tree, and the commit of each one's entry.

    Raises:
        FastprojError: git is missing or fails.
    """
    with object_store(temporary_folder()) as store:
        return store.releases(store.link(root.absolute()))


@contextmanager
def object_store(parent: Path) -> Iterator["ObjectStore"]:
    """Create a temporary git repository under `parent`; without `git init`, so that it has no settings or hooks."""
    git.forget_callers_repository()
    parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(parent, "bundle") as folder:
        for name in ("git/objects/info", "git/refs"):
            (folder / name).mkdir(parents=True)
        (folder / "git/HEAD").write_text("ref: refs/heads/main\n")
        # A build by another user than the files' owner, as in a container, includes the history.
        (folder / ".gitconfig").write_text("[safe]\n\tdirectory = *\n")
        yield ObjectStore(folder)


class ObjectStore:
    """A temporary git repository in which a bundle is built."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._repository = folder / "git"
        home = str(folder)
        self._variables = {"HOME": home, "XDG_CONFIG_HOME": home, "GIT_CONFIG_GLOBAL": f"{home}/.gitconfig"}
        self._variables |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C"}
        for key, value in _IDENTITY.items():
            self._variables |= {f"GIT_AUTHOR_{key}": value, f"GIT_COMMITTER_{key}": value}

    def collect(self, root: Path) -> dict[str, str]:
        """Add the releases in the history of a source tree, and its current files as the newest entry.

        Files that git ignores there are skipped. Without history (an archive, a shallow clone), the current files are
        the only entry.

        Raises:
            FastprojError: `pyproject.toml` has no version.
        """
        declared = declared_version((root / "pyproject.toml").read_bytes())
        if declared is None:
            raise FastprojError(f"{root / 'pyproject.toml'} has no version: set it under [project]")
        head = self.link(root)
        past = self.releases(head)
        tree = self._current_tree(root, head)
        released = head is None or past.get(declared) == self._commit(tree, declared)
        version = declared if released else unreleased(declared, past)
        return past | {version: self._commit(tree, version)}

    def link(self, root: Path) -> str | None:
        """Make the objects of the repository around `root` readable, and return the tree of `root` at its HEAD.

        The tree has the form `commit:folder/`. None without a repository or its history.
        """
        asked = ["--is-shallow-repository", "--git-path", "objects", "--show-prefix", "HEAD", "HEAD:./pyproject.toml"]
        done = git.run(root, "rev-parse", *asked, variables=self._variables)
        if not done.ok:
            return None
        shallow, objects, prefix, head = os.fsdecode(done.stdout).split("\n")[:4]
        objects_folder = root / objects
        partial = any(objects_folder.glob("pack/*.promisor"))
        if shallow == "true" or partial or len(head) != 40:
            return None
        (self._repository / "objects/info/alternates").write_bytes(os.fsencode(f"{objects_folder}\n"))
        return f"{head}:{prefix}"

    def releases(self, tree: str | None) -> dict[str, str]:
        """Add the releases: the commits, except merges, that change the version in `pyproject.toml` to a release.

        All branches of the history are followed, as a merge may have swapped the main line with another one. The first
        commit with a version counts, so that a release never moves.
        """
        if tree is None:
            return {}
        head, _, prefix = tree.partition(":")
        file = f"{prefix}pyproject.toml"
        log = ["log", "--no-merges", "--full-history", "--topo-order", "--reverse", "--format=%H", head]
        commits = self._git("--literal-pathspecs", *log, "--", file).text.split()
        contents = self._read([f"{commit}{path}" for commit in commits for path in (f"^:{file}", f":{file}")])
        found: dict[str, str] = {}
        for commit, before, after in zip(commits, contents[::2], contents[1::2], strict=True):
            version = declared_version(after)
            if version is None or version == declared_version(before) or version in found or not is_release(version):
                continue
            if template := self._template(f"{commit}:{prefix}"):
                found[version] = self._commit(template, version)
        return found

    def take(self, bundle: Path, versions: Mapping[str, str]) -> dict[str, str]:
        """Add all objects of a bundle, and return those of its entries that are as this module makes them.

        Raises:
            FastprojError: git cannot read it.
        """
        self._git("bundle", "unbundle", str(bundle))
        return {it: found for it, found in versions.items() if self._commit(f"{found}^{{tree}}", it) == found}

    def write(self, versions: Mapping[str, str], target: Path) -> None:
        """Replace a file in the folder around this repository atomically by a bundle of these entries.

        `main` and `HEAD` are the newest.
        """
        ordered = sorted(versions, key=Version)
        refs = dict.fromkeys(("HEAD", "refs/heads/main"), versions[ordered[-1]])
        refs |= {f"refs/tags/{tag_of(version)}": versions[version] for version in ordered}
        head = "\n".join(["# v2 git bundle", *(f"{commit} {name}" for name, commit in refs.items()), "", ""])
        # The bytes must not depend on how another git packed the objects.
        same = ["--no-reuse-delta", "--no-reuse-object", "--no-use-bitmap-index", "--threads=1", "--delta-base-offset"]
        commits = "".join(f"{versions[version]}\n" for version in ordered).encode()
        pack = self._git("pack-objects", "--quiet", "--stdout", "--revs", *same, data=commits).stdout
        partial = self._folder / "bundle"
        with open(partial, "wb") as file:
            file.write(head.encode() + pack)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)

    def _current_tree(self, root: Path, head: str | None) -> str:
        """Add `copier.yml` and `template/` as they are on the disk, and return their tree."""
        if head and (tracked := self._template(head)):
            self._git("read-tree", tracked)  # so that no tracked file counts as ignored
        self._git("-c", "core.bare=false", f"--work-tree={root}", "add", "--all", "--", *_CONTENT, folder=root)
        return self._git("write-tree").text.strip()

    def _template(self, tree: str) -> str | None:
        """Add a tree with only the template's entries of another one, and return it; None if one is missing."""
        found = self._git("ls-tree", "-z", tree, *_CONTENT).stdout
        return self._git("mktree", "-z", data=found).text.strip() if found.count(b"\0") == len(_CONTENT) else None

    def _commit(self, tree: str, version: str) -> str:
        return self._git("commit-tree", "-m", f"Template {version}", tree).text.strip()

    def _read(self, names: Sequence[str]) -> list[bytes]:
        """Return the content of objects; empty for those that do not exist."""
        rest = self._git("cat-file", "--batch", data=os.fsencode("".join(f"{name}\n" for name in names))).stdout
        contents = []
        for _ in names:
            answer, _, rest = rest.partition(b"\n")
            size = 0 if answer.endswith(b" missing") else int(answer.rpartition(b" ")[2]) + 1
            contents.append(rest[:size][:-1])
            rest = rest[size:]
        return contents

    def _git(self, *arguments: str, data: bytes = b"", folder: Path | None = None) -> git.Result:
        variables = self._variables | {"GIT_DIR": str(self._repository)}
        done = git.run(folder or self._folder, *arguments, data=data, variables=variables, timeout_s=_TIMEOUT_S)
        if not done.ok:
            raise FastprojError(f"git could not build the template's bundle: {done.reason}")
        return done
