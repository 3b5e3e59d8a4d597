"""Cut a release: `make release VERSION=X.Y.Z`. Nothing is pushed."""

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

_CHANGELOG = Path("CHANGELOG.md")


def main() -> None:
    """Release the repository in the current folder: two commits and a tag, after all tests."""
    version = sys.argv[1]
    numbers = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version)
    if not numbers:
        sys.exit("release: pass three numbers, as in make release VERSION=1.2.3")
    _check(version)
    if subprocess.run(["make", "--no-print-directory", "test-all"], check=False).returncode:
        sys.exit("release: make test-all fails: fix that first")
    _check(version)

    dated = f"## {version} ({datetime.now(UTC):%Y-%m-%d})"
    changelog = _CHANGELOG.read_text().replace(_heading(version), dated)
    _CHANGELOG.write_text(changelog)
    _commit(version, f"Release {version}")
    _git("tag", "--annotate", "-m", f"fastproj {version}", f"v{version}")
    major, minor, patch = numbers.groups()
    following = f"{major}.{minor}.{int(patch) + 1}.dev0"  # older than any later release
    _commit(following, f"Start the version after {version}")
    print(f"release: {version} is ready; publish it with: git push --atomic origin main v{version}")


def _heading(version: str) -> str:
    return f"## {version} (not released)"


def _check(version: str) -> None:
    """Exit if files are not committed, or the changelog does not describe the version."""
    if _git("status", "--porcelain"):
        sys.exit("release: there are uncommitted changes: commit or stash them")
    if _git("tag", "--list", f"v{version}"):
        sys.exit(f"release: the tag v{version} exists already: choose a newer version")
    if _heading(version) not in _CHANGELOG.read_text().splitlines():
        sys.exit(f"release: CHANGELOG.md has no line '{_heading(version)}': describe it there")


def _commit(version: str, message: str) -> None:
    pyproject = Path("pyproject.toml")
    line = re.compile(r'^version = ".*"$', re.MULTILINE)
    pyproject.write_text(line.sub(f'version = "{version}"', pyproject.read_text(), count=1))
    _git("commit", "--quiet", "--all", "--message", message)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
