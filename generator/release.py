"""Cut a release: `make release VERSION=X.Y.Z`.

Nothing changes until all checks pass, and nothing is pushed.
"""

import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from fastproj.template.versions import newest
from packaging.version import Version
from template_bundle import releases

# Variables that `make` passes to its children, removed so that they do not limit the tests.
_MAKE_VARIABLES = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS", "VERSION")


class RefusedError(Exception):
    """Why a release is refused, and how to fix it, in one line."""


def main() -> None:
    """Release the repository in the current folder under the given version."""
    version = sys.argv[1]
    root = Path.cwd()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        _check(root, version)
        changelog = _dated(root / "CHANGELOG.md", version)
        _test(root)
        _release(root, version, changelog)
    except RefusedError as refusal:
        sys.exit(f"release: {refusal}")
    except KeyboardInterrupt:
        sys.exit("release: interrupted; nothing was changed")
    print(f"release: {version} is ready; publish it with: git push --atomic origin main v{version}")


def _check(root: Path, version: str) -> None:
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise RefusedError(
            f"VERSION is {version!r}: pass three numbers, as in make release VERSION=1.2.3"
        )
    if _git(root, "branch", "--show-current") != "main":
        raise RefusedError("releases are made on main: git switch main")
    if _git(root, "status", "--porcelain"):
        raise RefusedError("there are uncommitted changes: commit or stash them")
    last = newest(["0", *releases(root)])
    if Version(version) <= Version(last):
        raise RefusedError(
            f"{version} is not newer than the last release, {last}: choose a newer one"
        )
    if _git(root, "tag", "--list", f"v{version}"):
        raise RefusedError(
            f"the tag v{version} exists already: git tag --delete it, or choose a newer version"
        )


def _dated(file: Path, version: str) -> str:
    """Return the changelog with today's date in the version's heading."""
    before, heading, after = file.read_text().partition(f"\n## {version} (not released)\n")
    if not heading:
        raise RefusedError(
            f"CHANGELOG.md has no line '## {version} (not released)': "
            "describe there what changes for a project"
        )
    return f"{before}\n## {version} ({datetime.now(UTC):%Y-%m-%d})\n{after}"


def _test(root: Path) -> None:
    """Run all tests, which include updates from every earlier release."""
    head = _git(root, "rev-parse", "HEAD")
    environment = {key: value for key, value in os.environ.items() if key not in _MAKE_VARIABLES}
    if subprocess.run(["make", "test-all"], cwd=root, env=environment, check=False).returncode != 0:
        raise RefusedError("make test-all fails: fix that first")
    if _git(root, "rev-parse", "HEAD") != head or _git(root, "status", "--porcelain"):
        raise RefusedError("files changed during the tests: see git status, and try again")


def _release(root: Path, version: str, changelog: str) -> None:
    """Create the commit and tag of the release, and the commit that starts the next version."""
    before = _git(root, "rev-parse", "HEAD")
    major, minor, patch = version.split(".")
    following = f"{major}.{minor}.{int(patch) + 1}.dev0"  # older than any later release
    try:
        (root / "CHANGELOG.md").write_text(changelog)
        _commit(root, version, f"Release {version}")
        _commit(root, following, f"Start the version after {version}")
        _git(root, "tag", "--annotate", "-m", f"fastproj {version}", f"v{version}", "HEAD~")
    except BaseException:
        _git(root, "reset", "--quiet", "--hard", before)  # the tree was clean
        raise


def _commit(root: Path, version: str, message: str) -> None:
    pyproject = root / "pyproject.toml"
    line = re.compile(r'^version = ".*"$', re.MULTILINE)
    pyproject.write_text(line.sub(f'version = "{version}"', pyproject.read_text(), count=1))
    _git(root, "commit", "--quiet", "--all", "--message", message)


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RefusedError(f"git {arguments[0]} failed: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
