"""The template that comes with this program, as a git bundle with a commit for each release.

Projects record a copy of it in the home folder, from which plain `copier update` works too.
"""

import hashlib
import os
import shutil
from pathlib import Path
from secrets import token_hex

from ..errors import FastprojError
from .versions import newest, version_of

QUESTIONS = Path(__file__).parents[1]
"""The folder with its `copier.yml`."""
_PACKED = QUESTIONS / "_template.bundle"
_NAME = "template.bundle"


def template_version() -> str:
    """Return the version of the embedded template."""
    return newest(_packed())


def location() -> str:
    """Return what a project records: the same path on every machine, by default."""
    return str(_copy()) if os.environ.get("FASTPROJ_HOME") else f"~/.fastproj/{_NAME}"


def is_embedded(recorded: str) -> bool:
    """Return whether a project records the embedded template, possibly on another machine."""
    path = Path(os.path.abspath(os.path.expanduser(recorded)))
    return path == _copy() or path.parts[-2:] == (".fastproj", _NAME)


def refresh_copy() -> tuple[Path, str]:
    """Write the copy unless it has all releases; return it with the tag of this version."""
    copy = _copy()
    ours = _packed()
    partial = copy.with_name(f".{_NAME}.{token_hex(8)}")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not ours.items() <= entries(copy).items():  # that of a newer program has more
            try:
                shutil.copyfile(_PACKED, partial)
                os.replace(partial, copy)
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise FastprojError(
            f"cannot write the template's copy {copy} ({error.strerror}): "
            "set FASTPROJ_HOME to a writable folder"
        ) from error
    return copy, f"v{newest(ours)}"


def entries(bundle: Path) -> dict[str, str]:
    """Return the versions in a bundle and the commit of each; none if it is missing or damaged.

    The checksum at the end shows whether the file is complete, in a millisecond and without git.
    """
    try:
        # reading a pipe, for example, would wait forever
        content = bundle.read_bytes() if bundle.is_file() else b""
    except OSError:
        return {}
    head, _, pack = content.partition(b"\n\n")
    first, *lines = head.decode(errors="replace").split("\n")
    checksum = hashlib.sha1(pack[:-20], usedforsecurity=False).digest()
    if first not in ("# v2 git bundle", "# v3 git bundle") or checksum != pack[-20:]:
        return {}
    versions = {}
    for line in lines:
        commit, _, version = line.partition(" refs/tags/v")
        if str(version_of(version)) == version:
            versions[version] = commit
    return versions


def _copy() -> Path:
    """Return the path of the copy: in FASTPROJ_HOME, or in the user's home folder."""
    folder = Path(os.environ.get("FASTPROJ_HOME") or "~/.fastproj")
    try:
        return folder.expanduser().absolute() / _NAME
    except RuntimeError as error:
        raise FastprojError(
            f"the home folder in {folder} is not known: set FASTPROJ_HOME to a writable folder"
        ) from error


def _packed() -> dict[str, str]:
    """Return the entries of the bundle that was installed with the program."""
    versions = entries(_PACKED)
    if not versions:
        raise FastprojError(
            f"{_PACKED} is missing or damaged: "
            "reinstall fastproj, or run generator/template_bundle.py in a clone"
        )
    return versions
