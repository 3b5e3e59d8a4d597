"""Versions of the template, and the tags that stand for them."""

import re
from collections.abc import Iterable

from packaging.version import InvalidVersion, Version  # hatchling and copier both require it

# To parse `pyproject.toml` with tomllib would take the time of a git command.
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
    version = version_of(stated[1]) if stated else None
    return str(version) if version else None


def version_of(tag: str) -> Version | None:
    """Return the version of a tag, or of the tag in a description such as v1.0-2-g1a2b3c; None if it is none."""
    try:
        return Version(re.sub(r"-\d+-g[0-9a-f]+$", "", tag))
    except InvalidVersion:
        return None
