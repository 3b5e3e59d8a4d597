"""Build the template as a git bundle, with one parentless commit per release.

Only builds and checkouts need this.

`python generator/template_bundle.py` builds it for a checkout, from which the program then renders.
"""

import os
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fastproj import git
from fastproj.errors import FastprojError
from fastproj.scratch import scratch_folder
from fastproj.template.versions import is_release, version_of
from packaging.version import Version

PLACE = "generator/fastproj/_template.bundle"
# An entry contains these, and nothing else of the repository.
_CONTENT = ("copier.yml", "template")
# Fixed, so that the same tree is the same commit on every machine and in every later build.
_IDENTITY = {"NAME": "fastproj", "EMAIL": "fastproj@localhost", "DATE": "@946684800 +0000"}
_VARIABLES = {
    **{f"GIT_AUTHOR_{key}": value for key, value in _IDENTITY.items()},
    **{f"GIT_COMMITTER_{key}": value for key, value in _IDENTITY.items()},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "LC_ALL": "C",
    "XDG_CONFIG_HOME": os.devnull,
}
# The files of a build may belong to another user, as in a container.
_SETTINGS = {
    "safe.directory": "*",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
}
# The bytes of a bundle must not depend on how another git packed the objects.
_PACKED_ANEW = (
    "--no-reuse-delta",
    "--no-reuse-object",
    "--no-use-bitmap-index",
    "--threads=1",
    "--delta-base-offset",
)


def build(root: Path, target: Path) -> None:
    """Write the bundle of a source tree's template: each release, and the current files.

    The bundle replaces `target` atomically; the same files give the same bytes.
    """
    with object_store(target.absolute().parent) as store:
        store.write(store.collect(root.absolute()), target)


def releases(root: Path) -> dict[str, str]:
    """Return the releases in the history of a source tree, and the commit of each one's entry."""
    with object_store(Path(tempfile.gettempdir())) as store:
        return store.releases(store.link(root.absolute()))


def declared_version(pyproject: bytes) -> str | None:
    """Return the version in a `pyproject.toml`, normalized; None if it has none."""
    try:
        stated = tomllib.loads(pyproject.decode())["project"]["version"]
    except (ValueError, KeyError):
        return None
    version = version_of(str(stated))
    return str(version) if version else None


@contextmanager
def object_store(parent: Path) -> Iterator["ObjectStore"]:
    """Create a temporary git repository; without `git init`, so it has no settings or hooks."""
    git.forget_callers_repository()
    parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(parent, "bundle") as folder:
        for name in ("git/objects/info", "git/refs"):
            (folder / name).mkdir(parents=True)
        (folder / "git/HEAD").write_text("ref: refs/heads/main\n")
        yield ObjectStore(folder)


class ObjectStore:
    """A temporary git repository in which a bundle is built."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self, root: Path) -> dict[str, str]:
        """Add the releases of a source tree, and its current files as the newest entry.

        Files that git ignores there are skipped. Without history (an archive, a shallow clone), the
        current files are the only entry.
        """
        declared = declared_version((root / "pyproject.toml").read_bytes())
        if declared is None:
            raise FastprojError(f"{root / 'pyproject.toml'} has no version: set it under [project]")
        head = self.link(root)
        past = self.releases(head)
        if head and (tracked := self._template(head)):
            self._git("read-tree", tracked)  # so that no tracked file counts as ignored
        options = ["-c", "core.bare=false", f"--work-tree={root}"]
        self._git(*options, "add", "--all", "--", *_CONTENT, folder=root)
        tree = self._git("write-tree").text.strip()
        released = head is None or past.get(declared) == self._commit(tree, declared)
        version = declared if released else _unreleased(declared, past)
        return past | {version: self._commit(tree, version)}

    def link(self, root: Path) -> str | None:
        """Make the objects of the repository around `root` readable, and return its tree at HEAD.

        The tree has the form `commit:folder/`. None without a repository or its history.
        """
        asked = ["--is-shallow-repository", "--git-path", "objects", "--show-prefix"]
        asked += ["HEAD", "HEAD:./pyproject.toml"]
        done = git.run(root, "rev-parse", *asked, variables=_VARIABLES, settings=_SETTINGS)
        if not done.ok:
            return None
        shallow, objects, prefix, head = os.fsdecode(done.stdout).split("\n")[:4]
        objects_folder = root / objects
        partial = any(objects_folder.glob("pack/*.promisor"))
        if shallow == "true" or partial or len(head) != 40:
            return None
        (self._folder / "git/objects/info/alternates").write_bytes(
            os.fsencode(f"{objects_folder}\n")
        )
        return f"{head}:{prefix}"

    def releases(self, tree: str | None) -> dict[str, str]:
        """Add the releases: the first commits, except merges, with a version that is a release.

        All branches of the history are followed, as a merge may have swapped the main line with
        another one. A release never moves.
        """
        if tree is None:
            return {}
        head, _, prefix = tree.partition(":")
        pyproject = f"{prefix}pyproject.toml"
        order = ["--format=%H", "--no-merges", "--full-history", "--topo-order", "--reverse"]
        log = self._git("--literal-pathspecs", "log", *order, head, "--", pyproject)
        released: dict[str, str] = {}
        for commit in log.text.split():
            shown = self._git("show", f"{commit}:{pyproject}", may_fail=True)
            version = declared_version(shown.stdout)
            if version is None or version in released or not is_release(version):
                continue
            if template := self._template(f"{commit}:{prefix}"):
                released[version] = self._commit(template, version)
        return released

    def write(self, versions: Mapping[str, str], target: Path) -> None:
        """Replace a file atomically by a bundle of these entries.

        `main` and `HEAD` are the newest.
        """
        ordered = sorted(versions, key=Version)
        refs = dict.fromkeys(("HEAD", "refs/heads/main"), versions[ordered[-1]])
        refs |= {f"refs/tags/v{version}": versions[version] for version in ordered}
        lines = [f"{commit} {name}" for name, commit in refs.items()]
        head = "\n".join(["# v2 git bundle", *lines, "", ""])
        commits = "".join(f"{versions[version]}\n" for version in ordered).encode()
        pack = self._git(
            "pack-objects",
            "--quiet",
            "--stdout",
            "--revs",
            *_PACKED_ANEW,
            data=commits,
        ).stdout
        partial = self._folder / "bundle"
        with open(partial, "wb") as file:
            file.write(head.encode() + pack)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)

    def _template(self, tree: str) -> str | None:
        """Add a tree with only the template's entries of another one; None if one is missing."""
        entries = self._git("ls-tree", "-z", tree, *_CONTENT).stdout
        if entries.count(b"\0") < len(_CONTENT):
            return None
        return self._git("mktree", "-z", data=entries).text.strip()

    def _commit(self, tree: str, version: str) -> str:
        return self._git("commit-tree", "-m", f"Template {version}", tree).text.strip()

    def _git(
        self,
        *arguments: str,
        data: bytes = b"",
        folder: Path | None = None,
        may_fail: bool = False,
    ) -> git.Result:
        variables = _VARIABLES | {"GIT_DIR": str(self._folder / "git")}
        place = folder or self._folder
        done = git.run(place, *arguments, data=data, variables=variables, settings=_SETTINGS)
        if not done.ok and not may_fail:
            raise FastprojError(f"git could not build the template's bundle: {done.reason}")
        return done


def _unreleased(declared: str, past: Iterable[str]) -> str:
    """Return the version of files that are no release: the declared or the next one."""
    version = f"{declared}.dev0" if is_release(declared) else declared
    last = max(map(Version, past), default=None)
    if last is None or Version(version) > last:
        return version
    *leading, final = last.release
    return ".".join(map(str, [*leading, final + 1])) + ".dev0"


if __name__ == "__main__":
    checkout = Path(__file__).parents[1]
    build(checkout, checkout / PLACE)
