"""The template as a git bundle: one parentless commit a release. The build hook imports this file alone."""

import hashlib
import os
import re
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version  # hatchling and copier both bring it

# What an entry holds, and nothing else of the repository.
_CONTENT = (b"copier.yml", b"template")

# A line of the table [project]. Reading a history's worth of such files with tomllib would take most of a build's time.
_VERSION = re.compile(r"""^\[project\]\s*\n(?:(?!\[).*\n)*?version\s*=\s*["']([^"'\n]+)["']""", re.MULTILINE)

# Fixed, so that the same tree is the same commit on every machine and in every later build.
_WHO = "fastproj <fastproj@localhost> 946684800 +0000"


def tag_of(version: str) -> str:
    """Return the git tag that stands for a version of the template."""
    return f"v{version}"


def is_release(version: str) -> bool:
    """Tell whether a version is a release, which never changes, and no `.dev` or other pre-release."""
    return not Version(version).is_prerelease


def newest(versions: Iterable[str]) -> str:
    """Return the newest version; what `entries` returns can be given as it is.

    Raises:
        ValueError: there is none.
    """
    return max(versions, key=Version)


def declared_version(pyproject: bytes) -> str | None:
    """Return the version that a `pyproject.toml` states, in its normal form; None where it states none."""
    stated = _VERSION.search(pyproject.decode(errors="replace"))
    return _canonical(stated[1]) if stated else None


def entries(bundle: Path) -> dict[str, str]:
    """Return the versions that a bundle's tags stand for (`v` and the version's normal form), each with its commit.

    In a bundle of ours the newest comes last. The checksum at the end shows whether all of the file is there, in a
    millisecond and without git.

    Raises:
        ValueError: it is no git bundle, or not a whole one.
        OSError: it cannot be read.
    """
    head, separator, pack = bundle.read_bytes().partition(b"\n\n")
    first, *lines = head.decode(errors="replace").split("\n")
    if not re.fullmatch(r"# v[23] git bundle", first) or not separator:
        raise ValueError(f"{bundle} is no git bundle")
    if hashlib.sha1(pack[:-20], usedforsecurity=False).digest() != pack[-20:]:
        raise ValueError(f"{bundle} is damaged or not all of it is there")
    found = {}
    for line in lines:
        identity, _, tag = line.partition(" refs/tags/v")
        if tag and _canonical(tag) == tag:
            found[tag] = identity
    return found


def build(root: Path, target: Path) -> None:
    """Write the bundle of the template under `root`: each release of its history, and the files as they are now.

    The bundle replaces `target` in one step; the same source gives the same bytes.

    Raises:
        subprocess.CalledProcessError: git failed; its message is in `stderr`.
        OSError: there is no git, or the target cannot be written.
        ValueError: `pyproject.toml` states no version.
    """
    with workshop(target.absolute().parent) as shop:
        shop.write(shop.bundle(shop.collect(root.absolute())), target)


def releases(root: Path) -> dict[str, str]:
    """Return the releases in the history of the repository that `root` lies in, each with its entry's commit id.

    Raises:
        subprocess.CalledProcessError: git failed; its message is in `stderr`.
        OSError: there is no git.
    """
    with tempfile.TemporaryDirectory(prefix="fastproj-") as folder, workshop(Path(folder)) as shop:
        history = shop.history(root.absolute())
        return shop.releases(history) if history else {}


@dataclass(frozen=True)
class History:
    """Where a source tree's past can be read."""

    head: str
    """The commit that is checked out."""
    prefix: str
    """The source tree's folder in the repository: empty, or with a slash at its end."""


@contextmanager
def workshop(parent: Path) -> Iterator["Workshop"]:
    """Make an empty repository in a folder of its own under `parent`, removed at the end.

    It is made by hand, and not by `git init`, so that it has no settings, hooks, grafts or replaced objects.
    """
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fastproj-bundle-", dir=parent) as folder:
        for name in ("git/objects/info", "git/refs", "home"):
            Path(folder, name).mkdir(parents=True)
        Path(folder, "git/HEAD").write_text("ref: refs/heads/main\n")
        # An image that is built by another user than the files' owner is no reason to leave the history out.
        Path(folder, "home/.gitconfig").write_text("[safe]\n\tdirectory = *\n")
        yield Workshop(Path(folder))


class Workshop:
    """A throw-away repository in which a bundle is put together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._repository = folder / "git"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key == "GIT_EXEC_PATH"}
        home = str(folder / "home")
        kept |= {"HOME": home, "XDG_CONFIG_HOME": home, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
        self._environment = kept | {"LC_ALL": "C"}
        self._unwritten: dict[str, bytes] = {}

    def collect(self, root: Path) -> dict[str, str]:
        """Take in the releases of a source tree's history, and its files as they are now as the newest entry.

        Files that git ignores there are left out. Without history (an archive, a shallow clone) the files are the
        only entry.

        Raises:
            ValueError: `pyproject.toml` states no version.
        """
        declared = declared_version((root / "pyproject.toml").read_bytes())
        if declared is None:
            raise ValueError(f"{root / 'pyproject.toml'} states no version: state one under [project]")
        history = self.history(root)
        tree = self._tree_now(root, history)
        if history is None:
            return {declared: self._commit(tree, declared)}
        past = self.releases(history)
        unchanged = past.get(declared) == self._commit(tree, declared)
        version = declared if unchanged else _unreleased(declared, past)
        return past | {version: self._commit(tree, version)}

    def history(self, root: Path) -> History | None:
        """Find the repository that tracks `root`, and read from it from now on; None without one or its past."""
        asked = ["--is-shallow-repository", "--git-path", "objects", "--show-prefix", "HEAD", "HEAD:./pyproject.toml"]
        done = self._run(["git", "rev-parse", *asked], cwd=root, environment=self._environment)
        if done.returncode != 0:
            return None
        shallow, objects, prefix, head = os.fsdecode(done.stdout).split("\n")[:4]
        store = root / objects
        partial = any(store.glob("pack/*.promisor"))
        if shallow == "true" or partial or len(head) != 40:
            return None
        (self._repository / "objects/info/alternates").write_bytes(os.fsencode(f"{store}\n"))
        return History(head, prefix)

    def releases(self, history: History) -> dict[str, str]:
        """Take in the releases: commits, but no merges, that change the version in `pyproject.toml` to one.

        All lines of the history are followed, as a merge may have made a side line of what was the main one. The
        first commit with a version counts, so that a release never moves.
        """
        file = f"{history.prefix}pyproject.toml"
        log = ["log", "--no-merges", "--full-history", "--topo-order", "--reverse", "--format=%H", history.head]
        commits = self._git("--literal-pathspecs", *log, "--", file).decode().split()
        asked = [f"{commit}{path}" for commit in commits for path in (f"^:{file}", f":{file}", f":{history.prefix}")]
        contents = self._read(asked)
        found: dict[str, str] = {}
        for before, after, listing in zip(contents[::3], contents[1::3], contents[2::3], strict=True):
            version = declared_version(after)
            template = _only_content(listing)
            if version is None or version == declared_version(before) or version in found or not template:
                continue
            if is_release(version):
                found[version] = self._commit(self._put("tree", template), version)
        return found

    def take(self, bundle: Path) -> None:
        """Take in all that a bundle holds.

        Raises:
            subprocess.CalledProcessError: git cannot read it.
        """
        self._git("bundle", "unbundle", str(bundle))

    def made_by_us(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Return those entries that are commits as this file makes them; what was put there by others is not."""
        contents = self._read(list(versions.values()))
        return {
            version: commit
            for (version, commit), content in zip(versions.items(), contents, strict=True)
            if content == _message(content[5:45].decode(errors="replace"), version)
        }

    def bundle(self, versions: Mapping[str, str]) -> bytes:
        """Return a bundle of entries that were taken in; `main` and `HEAD` are the newest."""
        self._write_objects()
        ordered = {version: versions[version] for version in sorted(versions, key=Version)}
        last = versions[newest(versions)]
        refs = {"HEAD": last, "refs/heads/main": last}
        refs |= {f"refs/tags/{tag_of(version)}": commit for version, commit in ordered.items()}
        head = ["# v2 git bundle", *(f"{commit} {name}" for name, commit in refs.items())]
        # What others stored, and how their git packed it, must not show in the bytes.
        alike = ["--no-reuse-delta", "--no-reuse-object", "--no-use-bitmap-index", "--threads=1", "--delta-base-offset"]
        wanted = "".join(f"{commit}\n" for commit in ordered.values())
        pack = self._git("pack-objects", "--quiet", "--stdout", "--revs", *alike, given=wanted.encode())
        return "\n".join([*head, "", ""]).encode() + pack

    def write(self, content: bytes, target: Path) -> None:
        """Replace a file of the folder that the workshop is in, in one step."""
        partial = self._folder / "bundle"
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)

    def _tree_now(self, root: Path, history: History | None) -> str:
        """Take in `copier.yml` and `template/` as they lie on the disk, and return their tree's id."""
        if history and (tracked := _only_content(self._read([f"{history.head}:{history.prefix}"])[0])):
            tree = self._put("tree", tracked)
            self._write_objects()
            self._git("read-tree", tree)  # so that no tracked file counts as ignored
        here = ["-c", "core.bare=false", f"--work-tree={root}"]
        self._git(*here, "add", "--all", "--", *map(os.fsdecode, _CONTENT), cwd=root)
        return self._git("write-tree").decode().strip()

    def _commit(self, tree: str, version: str) -> str:
        return self._put("commit", _message(tree, version))

    def _put(self, kind: str, content: bytes) -> str:
        """Make an object and return its id; it is written when it is needed, which it is not if nothing is new."""
        whole = f"{kind} {len(content)}\0".encode() + content
        identity = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        self._unwritten[identity] = whole
        return identity

    def _write_objects(self) -> None:
        while self._unwritten:
            identity, whole = self._unwritten.popitem()
            file = self._repository / "objects" / identity[:2] / identity[2:]
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(zlib.compress(whole))

    def _read(self, names: Sequence[str]) -> list[bytes]:
        """Return the content of objects, in one call; empty for what is not there."""
        if not names:
            return []
        rest = self._git("cat-file", "--batch", given=os.fsencode("\n".join(names) + "\n"))
        contents = []
        for _ in names:
            answer, _, rest = rest.partition(b"\n")
            size = 0 if answer.endswith(b" missing") else int(answer.rpartition(b" ")[2]) + 1
            contents.append(rest[:size][:-1])
            rest = rest[size:]
        return contents

    def _git(self, *arguments: str, given: bytes = b"", cwd: Path | None = None) -> bytes:
        environment = self._environment | {"GIT_DIR": str(self._repository)}
        done = self._run(["git", *arguments], cwd or self._folder, environment, given)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace")
            raise subprocess.CalledProcessError(done.returncode, ["git", *arguments], stderr=message)
        return done.stdout

    @staticmethod
    def _run(
        command: list[str], cwd: Path, environment: dict[str, str], given: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, cwd=cwd, env=environment, input=given, capture_output=True, check=False)


def _message(tree: str, version: str) -> bytes:
    """Return the commit that holds a version's tree."""
    return f"tree {tree}\nauthor {_WHO}\ncommitter {_WHO}\n\nTemplate {version}\n".encode()


def _only_content(listing: bytes) -> bytes:
    """Return a tree object without what is not the template's; empty where that is not all there."""
    found = re.finditer(rb"[0-7]+ ([^\0]+)\0.{20}", listing, re.DOTALL)
    kept = [entry[0] for entry in found if entry[1] in _CONTENT]
    return b"".join(kept) if len(kept) == len(_CONTENT) else b""


def _canonical(version: str) -> str | None:
    try:
        return str(Version(version))
    except InvalidVersion:
        return None


def _unreleased(declared: str, past: Mapping[str, str]) -> str:
    """Return the version of files that are no release: as declared if the last one is older, else the next."""
    version = f"{declared}.dev0" if is_release(declared) else declared
    if not past or Version(version) > Version(newest(past)):
        return version
    *leading, final = Version(newest(past)).release
    return ".".join(map(str, [*leading, final + 1])) + ".dev0"
