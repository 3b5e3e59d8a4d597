"""Cut a release: `make release VERSION=X.Y.Z`.

Nothing changes until all checks pass, and nothing is pushed.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fastproj.template.versions import newest
from packaging.version import Version
from template_bundle import declared_version, releases

# Variables that `make` passes to its children, removed so that they do not limit the tests.
_MAKE_VARIABLES = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS", "VERSION")


class RefusedError(Exception):
    """Why a release is refused, and how to fix it, in one line."""


def main() -> None:
    """Release the repository in the current folder under the given version."""
    version = sys.argv[1] if len(sys.argv) == 2 else ""
    root = Path.cwd()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        _check(root, version)
        _test(root)
        _release(root, version)
    except RefusedError as refusal:
        sys.exit(f"release: {refusal}")
    except OSError as error:
        sys.exit(f"release: {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit("release: interrupted; nothing was changed")
    print(f"release: {version} is ready; publish it with: git push --atomic origin main v{version}")


def _check(root: Path, version: str) -> None:
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise RefusedError(
            f"VERSION is {version!r}: pass three numbers, as in make release VERSION=1.2.3"
        )
    if (
        _git(root, "rev-parse", "--show-toplevel", "--is-shallow-repository")
        != f"{root.resolve()}\nfalse"
    ):
        raise RefusedError(
            f"{root} is not the root of a full clone: run it there (git fetch --unshallow)"
        )
    if _git(root, "branch", "--show-current") != "main":
        raise RefusedError("releases are made on main: git switch main")
    if _git(root, "status", "--porcelain"):
        raise RefusedError("there are uncommitted changes: commit or stash them")
    past = releases(root)
    if past and Version(version) <= Version(newest(past)):
        raise RefusedError(
            f"{version} is not newer than the last release, {newest(past)}: choose a newer one"
        )
    declared = declared_version((root / "pyproject.toml").read_bytes())
    if (
        declared is None
        or not Version(declared).is_devrelease
        or Version(declared) > Version(version)
    ):
        raise RefusedError(
            f"pyproject.toml is at {declared}: set it to a .dev version before {version}, and commit"
        )
    if _git(root, "tag", "--list", f"v{version}"):
        raise RefusedError(
            f"the tag v{version} exists already: git tag --delete it, or choose a newer version"
        )
    _dated(_changelog(root).read_text(), version)
    _with_version((root / "pyproject.toml").read_text(), version)
    _git(root, "var", "GIT_COMMITTER_IDENT")


def _test(root: Path) -> None:
    """Run all tests, which include updates from every earlier release."""
    head = _git(root, "rev-parse", "HEAD")
    environment = {key: value for key, value in os.environ.items() if key not in _MAKE_VARIABLES}
    if subprocess.run(["make", "test-all"], cwd=root, env=environment, check=False).returncode != 0:
        raise RefusedError("make test-all fails: fix that first")
    if _git(root, "rev-parse", "HEAD") != head or _git(root, "status", "--porcelain"):
        raise RefusedError("files changed during the tests: see git status, and try again")


def _release(root: Path, version: str) -> None:
    """Create the commit and tag of the release, and the commit that starts the next version."""
    major, minor, patch = version.split(".")
    following = f"{major}.{minor}.{int(patch) + 1}.dev0"  # older than any later release
    with _undone_on_failure(root, version):
        _changelog(root).write_text(_dated(_changelog(root).read_text(), version))
        _commit(root, version, f"Release {version}")
        _git(root, "tag", "--annotate", "--message", f"fastproj {version}", f"v{version}")
        _commit(root, following, f"Start the version after {version}")
        if version not in releases(root):
            raise RefusedError(
                f"{version} would not be in the bundle: commit copier.yml and template/"
            )


def _commit(root: Path, version: str, message: str) -> None:
    pyproject = root / "pyproject.toml"
    pyproject.write_text(_with_version(pyproject.read_text(), version))
    _git(root, "commit", "--quiet", "--all", "--message", message)


@contextmanager
def _undone_on_failure(root: Path, version: str) -> Iterator[None]:
    """Undo all changes if the body fails or is interrupted; the tree was clean, so nothing is lost."""
    before = _git(root, "rev-parse", "HEAD")
    try:
        yield
    except BaseException:
        _git(root, "reset", "--quiet", "--hard", before)
        if _git(root, "tag", "--list", f"v{version}"):
            _git(root, "tag", "--delete", f"v{version}")
        raise


def _changelog(root: Path) -> Path:
    return root / "CHANGELOG.md"


def _dated(changelog: str, version: str) -> str:
    """Return the changelog with today's date in the version's heading."""
    heading = f"## {version} (not released)\n"
    before, found, after = changelog.partition(heading)
    if not found or (before and not before.endswith("\n")):
        raise RefusedError(
            f"CHANGELOG.md has no line {heading.strip()!r}: describe there what changes for a project"
        )
    if not re.split(r"^## ", after, maxsplit=1, flags=re.MULTILINE)[0].strip():
        raise RefusedError(
            f"CHANGELOG.md's entry for {version} is empty: describe what changes for a project"
        )
    return f"{before}## {version} ({datetime.now(UTC):%Y-%m-%d})\n{after}"


def _with_version(pyproject: str, version: str) -> str:
    """Return a `pyproject.toml` with another version."""
    changed, places = re.subn(
        r'^version = "[^"\n]*"$', f'version = "{version}"', pyproject, flags=re.MULTILINE
    )
    if places != 1:
        raise RefusedError(
            f'pyproject.toml has {places} lines of the form version = "...": keep one'
        )
    return changed


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or "no message"
        raise RefusedError(f"git {arguments[0]} failed: {reason}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
