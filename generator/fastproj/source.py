"""Where a template comes from: the one that this program carries, or a folder, bundle or repository of the user's."""

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from . import git
from .bundle import build, tag_of
from .errors import FastprojError

_PACKAGE = Path(__file__).parent
_CHECKOUT = _PACKAGE.parent.parent


@dataclass(frozen=True)
class Source:
    """A template as copier takes it."""

    location: str
    """What a project records, and an update reads again; the same text on every machine for the embedded one."""
    revision: str | None
    """A tag, branch or commit; None for the newest release."""
    own: bool = False
    """Whether it is the one that this program carries."""


def template_version() -> str:
    """Version of the embedded template, which is this program's own."""
    return installed_version("fastproj")


def home() -> Path:
    """The folder in which the program keeps its copy of the template; FASTPROJ_HOME moves it."""
    return Path(os.path.expanduser(os.environ.get("FASTPROJ_HOME") or "~/.fastproj")).absolute()


def embedded() -> Source:
    """Bring the embedded template to its lasting place and return it.

    Raises:
        FastprojError: the folder cannot be written, or git is missing or fails.
    """
    git.require()
    target = home() / "template.bundle"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        if _in_checkout():
            build(_CHECKOUT, target, template_version())
        else:
            _copy(_PACKAGE / "_template.bundle", target)
    except subprocess.CalledProcessError as error:
        raise FastprojError(f"git could not make the template's bundle: {last_line(error.stderr)}") from error
    except OSError as error:
        raise FastprojError(
            f"cannot write the template's copy {target} ({error.strerror}): set FASTPROJ_HOME to a writable folder"
        ) from error
    location = str(target) if os.environ.get("FASTPROJ_HOME") else "~/.fastproj/template.bundle"
    return Source(location, tag_of(template_version()), own=True)


def named(location: str) -> Source:
    """Take a template that the user names: a folder, a bundle, or the address of a git repository.

    A folder is rendered as it is now, with changes that are not committed.

    Raises:
        FastprojError: it looks like a path, and nothing is there; or there is no git.
    """
    git.require()
    path = os.path.expanduser(location)
    if location and os.path.exists(path):
        return Source(os.path.realpath(path), None if os.path.isfile(path) else "HEAD")
    if ":" not in location:
        raise FastprojError(f"--template {location}: no such folder or bundle; give one, or a repository's address")
    return Source(location, None)


def questions(source: str | None = None) -> dict[str, Any] | None:
    """Read the questions of the embedded template, or of one in a folder; None where they cannot be seen yet."""
    import yaml  # 20 ms that only a command which asks needs

    if source is not None:
        file = Path(os.path.expanduser(source), "copier.yml")
    else:
        file = (_CHECKOUT if _in_checkout() else _PACKAGE) / "copier.yml"
    if source == "" or not os.path.isfile(file):
        return None
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.constructor.ConstructorError:
        return None  # a tag of copier's own, such as !include, which copier will read
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise FastprojError(f"cannot read the template's questions {file}: {reason}") from error
    if not isinstance(found, dict):
        raise FastprojError(f"{file} is no list of questions: give a copier template")
    # `name: value` is copier's short form of a question with that default.
    full = {key: entry if isinstance(entry, dict) else {"default": entry} for key, entry in found.items()}
    return {key: entry for key, entry in full.items() if isinstance(key, str) and not key.startswith("_")}


def last_line(text: str | None) -> str:
    """Return the last line that is not empty, where tools say what went wrong."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


@cache
def _in_checkout() -> bool:
    """Whether the program runs from its own repository, so that the template beside it is the one to use."""
    return (_CHECKOUT / "copier.yml").is_file() and (_CHECKOUT / "generator" / "fastproj").is_dir()


def _sweep(folder: Path) -> None:
    """Remove what a program that was killed an hour ago or more left half done."""
    for left in [*folder.glob("fastproj-bundle-*"), *folder.glob(".template-*")]:
        if time.time() - left.stat().st_mtime > 3600:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _copy(packed: Path, target: Path) -> None:
    """Copy the packed bundle unless the copy is the same already; never leaves half a file."""
    wanted = packed.read_bytes()
    if target.is_file() and target.read_bytes() == wanted:
        return
    descriptor, partial = tempfile.mkstemp(prefix=".template-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(wanted)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
