"""Versions of the template, and the tags that stand for them."""

import re
from collections.abc import Iterable

from packaging.version import InvalidVersion, Version  # hatchling and copier both require it

# A line of the table [project]. To parse each version of a history's file with tomllib would dominate a build.
_VERSION = re.compile(r"""^\[project\]\s*\n(?:(?!\[).*\n)*?version\s*=\s*["']([^"'\n]+)["']""", re.MULTILINE)


def tag_of(version: str) -> str:
    """Return the git tag of a version of the template."""
    return f"v{version}"


def is_release(version: str) -> bool:
    """Return whether a version is a release, which never changes, and not a `.dev` or other pre-release."""
    return not Version(version).is_prerelease


def newest(versions: Iterable[str]) -> str:
    """Return the newest version."""
    return max(versions, key=Version)


def declared_version(pyproject: bytes) -> str | None:
    """Return the version in a `pyproject.toml`, normalized; None if it has none."""
    stated = _VERSION.search(pyproject.decode(errors="replace"))
    return normalized(stated[1]) if stated else None


def normalized(version: str) -> str | None:
    """Return the normal form of a version; None if it is not one."""
    try:
        return str(Version(version))
    except InvalidVersion:
        return None


def unreleased(declared: str, releases: Iterable[str]) -> str:
    """Return the version of files that are not a release: the declared one, or the next after the last release."""
    version = f"{declared}.dev0" if is_release(declared) else declared
    last = max(map(Version, releases), default=None)
    if last is None or Version(version) > last:
        return version
    *leading, final = last.release
    return ".".join(map(str, [*leading, final + 1])) + ".dev0"
