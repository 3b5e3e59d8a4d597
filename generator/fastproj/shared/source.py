"""Where a template comes from: the one that this program carries, or a folder, bundle or repository of the user's."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from . import git
from .bundle import Workshop, declared_version, entries, is_release, newest, tag_of, workshop
from .errors import FastprojError
from .lock import locked

_PACKAGE = Path(__file__).parents[1]
_CHECKOUT = _PACKAGE.parent.parent
_PACKED = _PACKAGE / "_template.bundle"
_LOCK_TIMEOUT_S = 30.0


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
    """Version of the embedded template; in a checkout, the one that is declared there.

    Raises:
        FastprojError: the installation is damaged.
    """
    if not _in_checkout():
        return newest(_packed())
    return declared_version((_CHECKOUT / "pyproject.toml").read_bytes()) or installed_version("fastproj")


def home() -> Path:
    """The folder in which the program keeps its copy of the template; FASTPROJ_HOME moves it."""
    return Path(os.path.expanduser(os.environ.get("FASTPROJ_HOME") or "~/.fastproj")).absolute()


def embedded() -> Source:
    """Bring the embedded template to its lasting place and return it.

    Raises:
        FastprojError: the folder cannot be written, the installation is damaged, or git is missing or fails.
    """
    git.require()
    target = home() / "template.bundle"
    try:
        ours = _refresh(target)
    except subprocess.CalledProcessError as error:
        raise FastprojError(f"git could not make the template's bundle: {git.last_line(error.stderr)}") from error
    except ValueError as error:
        raise FastprojError(str(error)) from error
    except OSError as error:
        raise FastprojError(
            f"cannot write the template's copy {target} ({error.strerror}): set FASTPROJ_HOME to a writable folder"
        ) from error
    location = str(target) if os.environ.get("FASTPROJ_HOME") else "~/.fastproj/template.bundle"
    return Source(location, tag_of(newest(ours)), own=True)


def from_location(location: str) -> Source:
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
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML was built with it
        found = yaml.load(file.read_text(encoding="utf-8"), loader)  # noqa: S506
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


@cache
def _in_checkout() -> bool:
    """Whether the program runs from its own repository, so that the template beside it is the one to use."""
    return (_CHECKOUT / "copier.yml").is_file() and (_CHECKOUT / "generator" / "fastproj").is_dir()


def _refresh(target: Path) -> dict[str, str]:
    """See that the copy holds every entry of ours, and return ours.

    Others of fastproj's versions use the same copy, so it never loses a release that one of them brought.
    """
    packed = None if _in_checkout() else _packed()
    if packed is not None and packed.items() <= _held(target).items():
        return packed
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent), workshop(target.parent) as shop:
        ours = shop.collect(_CHECKOUT) if packed is None else packed
        held = _held(target)  # what another process may have just brought
        if ours.items() <= held.items():
            return ours
        others = _others(shop, target, held, ours)
        if packed is not None and not others:
            shop.write(_PACKED.read_bytes(), target)
            return ours
        if packed is not None:
            shop.take(_PACKED)
        shop.write(shop.bundle(others | ours), target)
        return ours


def _packed() -> dict[str, str]:
    """Return the entries of the bundle that was installed with the program."""
    try:
        return entries(_PACKED)
    except (OSError, ValueError) as error:
        raise FastprojError(
            f"the installed template {_PACKED} is missing or damaged: reinstall fastproj (pip --force-reinstall)"
        ) from error


def _held(target: Path) -> dict[str, str]:
    """Return the copy's entries; none where there is no copy, or no whole one, as it can be made again."""
    try:
        return entries(target)
    except (OSError, ValueError):
        return {}


def _others(shop: Workshop, copy: Path, held: dict[str, str], ours: dict[str, str]) -> dict[str, str]:
    """Take in what the copy holds beyond ours: the releases, and a newer `.dev`; nothing of another template."""
    if any(is_release(version) and ours[version] != held[version] for version in ours.keys() & held.keys()):
        return {}
    last = newest(held | ours)
    beyond = {
        version: commit
        for version, commit in held.items()
        if version not in ours and (is_release(version) or version == last)
    }
    if not beyond:
        return {}
    try:
        shop.take(copy)
    except subprocess.CalledProcessError:
        return {}
    return shop.made_by_us(beyond)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, and remove what killed programs left in it.

    Raises:
        FastprojError: another program holds it for too long.
    """
    busy = f"another fastproj has been using {folder} for {_LOCK_TIMEOUT_S:g} s: end it, or set FASTPROJ_HOME"
    with locked(folder, busy, _LOCK_TIMEOUT_S) as held:
        for left in folder.glob("fastproj-bundle-*") if held else ():
            shutil.rmtree(left, ignore_errors=True)
        yield
