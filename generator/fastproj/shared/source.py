"""The source of a template: the one embedded in this program, or the user's folder, bundle or repository."""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from . import git
from .bundle import ObjectStore, entries, object_store
from .errors import FastprojError
from .lock import locked
from .versions import declared_version, is_release, newest, tag_of
from .yaml_file import read_yaml

_PACKAGE = Path(__file__).parents[1]
_CHECKOUT = _PACKAGE.parent.parent
_PACKED = _PACKAGE / "_template.bundle"
_NAME = "template.bundle"
_RECORDED = tuple(
    f"~/{it}/{_NAME}" for it in (".fastproj", ".local/share/fastproj", "Library/Application Support/fastproj")
)
"""What projects record for the embedded template: until 0.3, and since then on Linux and on macOS."""
_LOCK_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Source:
    """A template and its version."""

    location: str
    """What a project records for updates; for the embedded template, a path that every machine knows."""
    revision: str | None
    """A tag, branch or commit; None for the newest release."""
    own: bool = False
    """Whether it is the embedded template."""
    checkout: Path | None = None
    """A folder with the files of the revision, if there is one."""


def template_version() -> str:
    """Return the version of the embedded template; in a checkout, the declared version."""
    if not _in_checkout():
        return newest(_packed())
    return declared_version((_CHECKOUT / "pyproject.toml").read_bytes()) or "unknown"


def home() -> Path:
    """Return the folder for the copy of the template: the platform's for data of the user, or FASTPROJ_HOME."""
    if chosen := os.environ.get("FASTPROJ_HOME"):
        return Path(os.path.expanduser(chosen)).absolute()
    from platformdirs import user_data_path  # `--help` does not need it

    return user_data_path("fastproj", appauthor=False).absolute()


def embedded_location() -> str:
    """Return what a project records for the embedded template: the copy's path, from `~` if it is below."""
    copy, user = home() / _NAME, os.path.expanduser("~")
    below = copy.is_relative_to(user) and not os.environ.get("FASTPROJ_HOME")
    return f"~/{copy.relative_to(user)}" if below else str(copy)


def embedded(recorded: str | None = None) -> Source:
    """Copy the embedded template to its permanent location and return it.

    Plain `copier update` reads the location that a project recorded: if possible, a copy is put there too, and copies
    in other such places are updated.
    """
    git.require()
    target = home() / _NAME
    try:
        ours = _refresh(target)
    except OSError as error:
        raise FastprojError(
            f"cannot write the template's copy {target} ({error.strerror}): set FASTPROJ_HOME to a writable folder"
        ) from error
    for place in _RECORDED if not os.environ.get("FASTPROJ_HOME") else ():
        copy = Path(os.path.expanduser(place))
        if (place == recorded or copy.exists()) and not ours.items() <= _held(copy).items():
            with suppress(OSError, FastprojError):
                _refresh(copy)
    return Source(embedded_location(), tag_of(newest(ours)), own=True)


def from_location(location: str) -> Source:
    """Return a template by what a project records or the user passes: a folder, a bundle, or a repository's URL."""
    git.require()
    path = os.path.abspath(os.path.expanduser(location))
    own = next((it for it in _RECORDED if path == os.path.expanduser(it)), None)
    if own is not None or path == str(home() / _NAME):
        return embedded(own)
    if location and os.path.exists(path):
        return Source(os.path.realpath(path), None if os.path.isfile(path) else "HEAD")
    if path.endswith(f"/fastproj/{_NAME}"):
        return embedded()  # recorded with another XDG_DATA_HOME
    if ":" not in location:
        raise FastprojError(
            f"the template {location} is not on this machine (no such folder or bundle): pass an existing one, or a "
            f"URL, with --template; {embedded_location()} is the one of this program"
        )
    return Source(location, None)


def questions(folder: str | None = None) -> dict[str, Any] | None:
    """Return the questions of the embedded template or of a folder; None if only copier can read them."""
    from yaml.constructor import ConstructorError  # 20 ms, which `--version` and `detect` do not need

    place = (_CHECKOUT if _in_checkout() else _PACKAGE) if folder is None else Path(folder)
    file = next((it for name in ("copier.yml", "copier.yaml") if os.path.isfile(it := place / name)), None)
    if file is None:
        return None
    try:
        found = read_yaml(file)
    except ConstructorError:
        return None  # a tag that copier defines, such as !include
    except (OSError, ValueError) as error:
        raise FastprojError(f"cannot read the template's questions {file}: {error}") from error
    if not isinstance(found, dict):
        raise FastprojError(f"{file} does not list questions: pass a copier template")
    syntax = found.get("_envops") or {}
    if not isinstance(syntax, dict) or syntax.keys() - {"undefined", "keep_trailing_newline"}:
        return None  # expressions in another syntax
    # copier allows `name: value` for a question with that default.
    return {
        key: entry if isinstance(entry, dict) else {"default": entry}
        for key, entry in found.items()
        if isinstance(key, str) and not key.startswith("_")
    }


@cache
def _in_checkout() -> bool:
    """Return whether the program runs from its own repository, and so uses the template there."""
    return (_CHECKOUT / "copier.yml").is_file() and (_CHECKOUT / "generator" / "fastproj").is_dir()


def _refresh(target: Path) -> dict[str, str]:
    """Add the entries of the embedded template to the copy, and return them.

    Other versions of fastproj share the copy, so releases that they added stay in it.
    """
    packed = None if _in_checkout() else _packed()
    if packed is not None and packed.items() <= _held(target).items():
        return packed
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"another fastproj has been using {folder} for {_LOCK_TIMEOUT_S:g} s: end it, or set FASTPROJ_HOME"
    with locked(folder, busy, _LOCK_TIMEOUT_S), object_store(folder) as store:
        ours = store.collect(_CHECKOUT) if packed is None else store.take(_PACKED, packed)
        held = _held(target)  # another process may have changed it before we held the lock
        if not ours.items() <= held.items():
            store.write(_others(store, target, held, ours) | ours, target)
        return ours


def _packed() -> dict[str, str]:
    """Return the entries of the bundle that was installed with the program."""
    found = _held(_PACKED)
    if not found:
        way_out = "reinstall fastproj (pip --force-reinstall)"
        raise FastprojError(f"the installed template {_PACKED} is missing or damaged: {way_out}")
    return found


def _held(bundle: Path) -> dict[str, str]:
    """Return the entries of a bundle; none if it is missing or damaged."""
    try:
        return entries(bundle)
    except (OSError, FastprojError):
        return {}


def _others(store: ObjectStore, copy: Path, held: dict[str, str], ours: dict[str, str]) -> dict[str, str]:
    """Add the releases that only the copy has, and its `.dev` entry if it is newer; none of another template."""
    if any(is_release(version) and ours[version] != held[version] for version in ours.keys() & held.keys()):
        return {}
    last = newest(held | ours)
    added = {it: held[it] for it in held.keys() - ours.keys() if is_release(it) or it == last}
    try:
        return store.take(copy, added) if added else {}
    except FastprojError:
        return {}
