"""Versions of the template: a tag is `v` and its version."""

import re
from collections.abc import Iterable

from packaging.version import InvalidVersion, Version  # hatchling and copier both require it


def newest(versions: Iterable[str]) -> str:
    """Return the newest version."""
    return max(versions, key=Version)


def version_of(tag: str) -> Version | None:
    """Return the version of a tag, or of a description such as v1.0-2-g1a2b3c; None without one."""
    try:
        return Version(re.sub(r"-\d+-g[0-9a-f]+$", "", tag))
    except InvalidVersion:
        return None


def is_release(tag: str) -> bool:
    """Return whether a version is a release, which never changes, and not a pre-release."""
    version = version_of(tag)
    return version is not None and not version.is_prerelease
