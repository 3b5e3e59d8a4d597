"""The template as a git bundle, with one parentless commit per release."""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.version import Version

from . import git
from .errors import FastprojError
from .versions import declared_version, is_release, newest, normalized, tag_of, unreleased

# An entry contains these, and nothing else of the repository.
_CONTENT = (b"copier.yml", b"template")

# Fixed, so that the same tree is the same commit on every machine and in every later build.
_AUTHOR = "fastproj <fastproj@localhost> 946684800 +0000"
_TIMEOUT_S = 600.0


def entries(bundle: Path) -> dict[str, str]:
    """Return the versions in a bundle and the commit of each; in our own bundles the newest comes last.

    The checksum at the end shows whether the file is complete, in a millisecond and without git.

    Raises:
        FastprojError: it is not a git bundle, or incomplete.
        OSError: it cannot be read.
    """
    head, separator, pack = bundle.read_bytes().partition(b"\n\n")
    first, *lines = head.decode(errors="replace").split("\n")
    if not re.fullmatch(r"# v[23] git bundle", first) or not separator:
        raise FastprojError(f"{bundle} is not a git bundle")
    if hashlib.sha1(pack[:-20], usedforsecurity=False).digest() != pack[-20:]:
        raise FastprojError(f"{bundle} is damaged or incomplete")
    pairs = [line.partition(" refs/tags/v")[::2] for line in lines]
    return {tag: commit for commit, tag in pairs if tag and normalized(tag) == tag}


def build(root: Path, target: Path) -> None:
    """Write the bundle of the template in `root`: each release of its history, and the current files.

    The bundle replaces `target` atomically; the same files give the same bytes.

    Raises:
        FastprojError: git is missing or fails, or `pyproject.toml` has no version.
        OSError: the target cannot be written.
    """
    with object_store(target.absolute().parent) as store:
        store.write(store.bundle(store.collect(root.absolute())), target)


def releases(root: Path) -> dict[str, str]:
    """Return the releases in the history of a source tree, and the commit of each one's entry.

    Raises:
        FastprojError: git is missing or fails.
    """
    with tempfile.TemporaryDirectory(prefix="fastproj-") as folder, object_store(Path(folder)) as store:
        tree = store.link(root.absolute())
        return store.releases(tree) if tree else {}


@contextmanager
def object_store(parent: Path) -> Iterator["ObjectStore"]:
    """Create a temporary git repository under `parent`; without `git init`, so that it has no settings or hooks."""
    git.forget_callers_repository()
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fastproj-bundle-", dir=parent) as folder:
        for name in ("git/objects/info", "git/refs", "home"):
            Path(folder, name).mkdir(parents=True)
        Path(folder, "git/HEAD").write_text("ref: refs/heads/main\n")
        # A build by another user than the files' owner, as in a container, includes the history.
        Path(folder, "home/.gitconfig").write_text("[safe]\n\tdirectory = *\n")
        yield ObjectStore(Path(folder))


class ObjectStore:
    """A temporary git repository in which a bundle is built."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._repository = folder / "git"
        home = str(folder / "home")
        self._variables = {"HOME": home, "XDG_CONFIG_HOME": home, "GIT_CONFIG_GLOBAL": f"{home}/.gitconfig"}
        self._variables |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C"}

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
        tree = self._current_tree(root, head)
        if head is None:
            return {declared: self._commit(tree, declared)}
        past = self.releases(head)
        unchanged = past.get(declared) == self._commit(tree, declared)
        version = declared if unchanged else unreleased(declared, past)
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

    def releases(self, tree: str) -> dict[str, str]:
        """Add the releases: the commits, except merges, that change the version in `pyproject.toml` to a release.

        All branches of the history are followed, as a merge may have swapped the main line with another one. The first
        commit with a version counts, so that a release never moves.
        """
        head, _, prefix = tree.partition(":")
        file = f"{prefix}pyproject.toml"
        log = ["log", "--no-merges", "--full-history", "--topo-order", "--reverse", "--format=%H", head]
        commits = self._git("--literal-pathspecs", *log, "--", file).decode().split()
        contents = self._read(
            [f"{commit}{path}" for commit in commits for path in (f"^:{file}", f":{file}", f":{prefix}")]
        )
        found: dict[str, str] = {}
        for before, after, listing in zip(contents[::3], contents[1::3], contents[2::3], strict=True):
            version = declared_version(after)
            template = _template_only(listing)
            if version is None or version == declared_version(before) or version in found or not template:
                continue
            if is_release(version):
                found[version] = self._commit(self._put("tree", template), version)
        return found

    def unbundle(self, bundle: Path) -> None:
        """Add all objects of a bundle.

        Raises:
            FastprojError: git cannot read it.
        """
        self._git("bundle", "unbundle", str(bundle))

    def our_own(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Return the entries whose commits have the form that this module gives them."""
        contents = self._read(list(versions.values()))
        trees = [content[5:45].decode(errors="replace") for content in contents]
        expected = map(_commit_object, trees, versions)
        return {it: versions[it] for it, found, ours in zip(versions, contents, expected, strict=True) if found == ours}

    def bundle(self, versions: Mapping[str, str]) -> bytes:
        """Return a bundle of entries; `main` and `HEAD` are the newest."""
        ordered = {version: versions[version] for version in sorted(versions, key=Version)}
        last = versions[newest(versions)]
        refs = {"HEAD": last, "refs/heads/main": last}
        refs |= {f"refs/tags/{tag_of(version)}": commit for version, commit in ordered.items()}
        head = ["# v2 git bundle", *(f"{commit} {name}" for name, commit in refs.items())]
        # The bytes must not depend on how another git packed the objects.
        same = ["--no-reuse-delta", "--no-reuse-object", "--no-use-bitmap-index", "--threads=1", "--delta-base-offset"]
        commits = "".join(f"{commit}\n" for commit in ordered.values()).encode()
        return "\n".join([*head, "", ""]).encode() + self._git(
            "pack-objects", "--quiet", "--stdout", "--revs", *same, data=commits
        )

    def write(self, content: bytes, target: Path) -> None:
        """Replace a file in the folder around this repository atomically."""
        partial = self._folder / "bundle"
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)

    def _current_tree(self, root: Path, head: str | None) -> str:
        """Add `copier.yml` and `template/` as they are on the disk, and return their tree."""
        if head and (tracked := _template_only(self._read([head])[0])):
            tree = self._put("tree", tracked)
            self._git("read-tree", tree)  # so that no tracked file counts as ignored
        here = ["-c", "core.bare=false", f"--work-tree={root}"]
        self._git(*here, "add", "--all", "--", *map(os.fsdecode, _CONTENT), folder=root)
        return self._git("write-tree").decode().strip()

    def _commit(self, tree: str, version: str) -> str:
        return self._put("commit", _commit_object(tree, version))

    def _put(self, kind: str, content: bytes) -> str:
        """Write an object and return its hash."""
        return self._git("hash-object", "-t", kind, "-w", "--stdin", data=content).decode().strip()

    def _read(self, names: Sequence[str]) -> list[bytes]:
        """Return the content of objects; empty for those that do not exist."""
        rest = self._git("cat-file", "--batch", data=os.fsencode("".join(f"{name}\n" for name in names)))
        contents = []
        for _ in names:
            answer, _, rest = rest.partition(b"\n")
            size = 0 if answer.endswith(b" missing") else int(answer.rpartition(b" ")[2]) + 1
            contents.append(rest[:size][:-1])
            rest = rest[size:]
        return contents

    def _git(self, *arguments: str, data: bytes = b"", folder: Path | None = None) -> bytes:
        variables = self._variables | {"GIT_DIR": str(self._repository)}
        done = git.run(folder or self._folder, *arguments, data=data, variables=variables, timeout_s=_TIMEOUT_S)
        if not done.ok:
            raise FastprojError(f"git could not build the template's bundle: {done.reason}")
        return done.stdout


def _commit_object(tree: str, version: str) -> bytes:
    return f"tree {tree}\nauthor {_AUTHOR}\ncommitter {_AUTHOR}\n\nTemplate {version}\n".encode()


def _template_only(listing: bytes) -> bytes:
    """Return a tree object with only the template's entries; empty if one is missing."""
    found = re.finditer(rb"[0-7]+ ([^\0]+)\0.{20}", listing, re.DOTALL)
    kept = [entry[0] for entry in found if entry[1] in _CONTENT]
    return b"".join(kept) if len(kept) == len(_CONTENT) else b""
