"""The template that comes with this program, as a git bundle: one parentless commit for each release.

Projects record a copy of it, from which plain `copier update` works too.
"""

import hashlib
import os
import re
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex

from .errors import FastprojError
from .versions import declared_version, newest, tag_of, version_of

_PACKAGE = Path(__file__).parents[1]
_CHECKOUT = _PACKAGE.parent.parent
_PACKED = _PACKAGE / "_template.bundle"
_NAME = "template.bundle"
_PLACES = tuple(
    f"~/{it}/{_NAME}" for it in (".fastproj", ".local/share/fastproj", "Library/Application Support/fastproj")
)
"""What projects record: until 0.3, and since then on Linux and on macOS."""


@cache
def _in_checkout() -> bool:
    """Return whether the program runs from its own repository, and so uses the template there."""
    return (_CHECKOUT / "copier.yml").is_file() and (_CHECKOUT / "generator" / "fastproj").is_dir()


def questions_folder() -> Path:
    """Return the folder with the `copier.yml` of the embedded template."""
    return _CHECKOUT if _in_checkout() else _PACKAGE


def template_version() -> str:
    """Return the version of the embedded template; in a checkout, the declared version."""
    if not _in_checkout():
        return newest(_packed())
    return declared_version((_CHECKOUT / "pyproject.toml").read_bytes()) or "unknown"


def location() -> str:
    """Return what a project records for the embedded template: the copy's path, from `~` if it is below."""
    copy, user = _copy(), os.path.expanduser("~")
    below = copy.is_relative_to(user) and not os.environ.get("FASTPROJ_HOME")
    return f"~/{copy.relative_to(user)}" if below else str(copy)


def is_embedded(recorded: str) -> bool:
    """Return whether a project records the embedded template, possibly on another machine."""
    path = os.path.abspath(os.path.expanduser(recorded))
    here = path in (str(_copy()), *map(os.path.expanduser, _PLACES))
    return here or (path.endswith(f"/fastproj/{_NAME}") and not os.path.exists(path))


def refresh_copy() -> tuple[Path, str]:
    """Write the copy unless it has all releases of this program, and return it with the tag of this version."""
    copy = _copy()
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if _in_checkout():
            from template_bundle import refresh  # not a part of the installed program

            ours: dict[str, str] = refresh(_CHECKOUT, copy)
        else:
            ours = _packed()
            _replace(copy, _PACKED, ours)
    except OSError as error:
        raise FastprojError(
            f"cannot write the template's copy {copy} ({error.strerror}): set FASTPROJ_HOME to a writable folder"
        ) from error
    for former in map(os.path.expanduser, _PLACES):
        with suppress(OSError):
            if os.path.exists(former) and not os.environ.get("FASTPROJ_HOME"):
                _replace(Path(former), copy, ours)
    return copy, tag_of(newest(ours))


def held(bundle: Path) -> dict[str, str]:
    """Return the entries of a bundle; none if it is missing or damaged."""
    try:
        return entries(bundle)
    except (OSError, FastprojError):
        return {}


def entries(bundle: Path) -> dict[str, str]:
    """Return the versions in a bundle and the commit of each; in our own bundles the newest comes last.

    The checksum at the end shows whether the file is complete, in a millisecond and without git.
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
    return {tag: commit for commit, tag in pairs if str(version_of(tag)) == tag}


def _copy() -> Path:
    """Return the path of the copy: in the platform's folder for data of the user, or in FASTPROJ_HOME."""
    if chosen := os.environ.get("FASTPROJ_HOME"):
        return Path(os.path.expanduser(chosen)).absolute() / _NAME
    from platformdirs import user_data_path  # `--help` does not need it

    return user_data_path("fastproj", appauthor=False).absolute() / _NAME


def _packed() -> dict[str, str]:
    """Return the entries of the bundle that was installed with the program."""
    found = held(_PACKED)
    if not found:
        raise FastprojError(
            f"the installed template {_PACKED} is missing or damaged: reinstall fastproj (pip --force-reinstall)"
        )
    return found


def _replace(target: Path, bundle: Path, ours: dict[str, str]) -> None:
    """Replace a copy atomically by a bundle, unless it has these entries, as that of a newer program has."""
    if ours.items() <= held(target).items():
        return
    partial = target.with_name(f".{_NAME}.{token_hex(8)}")
    try:
        shutil.copyfile(bundle, partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
