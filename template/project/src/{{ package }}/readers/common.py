"""Helpers shared by the readers: file lists, and caches that are built once."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import UserError

SAMPLES, BLOCK = 256, 4096
"""Blocks of a cache's file that are compared at each start, and their bytes: all of a file up to 1 MiB."""


def list_files(root: Path, pattern: str = "*", suffixes: Collection[str] = ()) -> list[Path]:
    """Files in a folder and its subfolders, sorted by name, without hidden ones; `suffixes` are lowercase.

    Links are followed; one to a missing file is listed, so that it counts as unreadable. A `pattern` is matched at any
    depth.

    Raises:
        UserError: a folder cannot be read, or is a link to a folder that contains it, or to nothing.
    """
    wanted = ("**", *Path(pattern).parts)
    found = []
    for path in _walk(str(root), (os.path.realpath(root),)):
        suffix = os.path.splitext(path)[1].lower()
        if suffixes and not suffix and not os.path.exists(path):
            raise UserError(
                f"{path} is a link to {os.path.realpath(path)}, which is missing: correct or remove the link"
            )
        if (suffixes and suffix not in suffixes) or not fnmatchcase(os.path.basename(path), wanted[-1]):
            continue
        if len(wanted) == 2 or _matches(Path(path).relative_to(root).parts, wanted):
            found.append(Path(path))
    return sorted(found)


def _walk(folder: str, above: tuple[str, ...]) -> Iterator[str]:
    """Return the visible files, and links to nothing; `above` are the folders on the way here, without links."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"cannot read the folder {folder} ({error.strerror}): change its permissions") from error
    for entry in entries:
        link = entry.is_symlink()
        real = os.path.realpath(entry.path) if link else os.path.join(above[-1], entry.name)
        if os.path.isdir(entry.path) if link else entry.is_dir():
            if link and any(f"{one}/".startswith(f"{real.rstrip('/')}/") for one in above):
                raise UserError(f"{entry.path} is a link to {real}, which contains it: remove the link")
            yield from _walk(entry.path, (*above, real))
        elif os.path.isfile(entry.path) or not os.path.exists(entry.path) if link else entry.is_file():
            yield entry.path


def _matches(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether the parts of a path match those of a pattern; `**` is any number of folders."""
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_matches(parts[skipped:], wanted[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])


def packaged_file(package: str, name: str) -> Path:
    """Path of a data file in an installed package, found without importing the package.

    Raises:
        UserError: the package is not installed, or it does not contain the file.
    """
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    for file in (Path(folder, name) for folder in folders or ()):
        if file.is_file():
            return file
    raise UserError(f"the built-in data set {name} of the package {package} is missing: reinstall it, or set data.path")


def abbreviate(names: Collection[object], limit: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(str(name) for name in list(names)[:limit]) + more


def fingerprint(files: Iterable[Path]) -> str:
    """A hash of the files' names, sizes and modification times; a cache with another fingerprint is stale."""
    digest = hashlib.sha256()
    for file in files:
        about = "missing"  # which the reader then says in its own words
        with suppress(OSError):
            stat = file.stat() if file.exists() else file.lstat()
            about = f"{stat.st_size}\0{stat.st_mtime_ns}"
        digest.update(f"{file}\0{about}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def build_once(
    cache: Path, kind: str, settings: dict[str, Any], files: Collection[Path], build: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """Return the cache folder that `build` filled from these files, and its manifest with what `build` returned.

    The folder is rebuilt when a file has changed, and when it is damaged itself, which is said. One process builds it
    while other ranks and runs wait. A build that is killed leaves nothing that a later run would use.

    Raises:
        UserError: the cache cannot be written.
    """
    name = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder, sources = cache / f"{kind}-{name}", fingerprint(files)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{kind}-{name}.lock"):
            manifest = _manifest(folder, sources)
            if not manifest:
                partial = folder.with_name(f"{folder.name}.partial")
                _remove(partial)
                partial.mkdir()
                built = {"sources": sources, "files": len(files), "settings": settings, **build(partial)}
                built["data"] = {file.name: _sample(file) for file in partial.iterdir()}
                manifest = json.loads(json.dumps(built, default=str))
                text = json.dumps({**manifest, "checksum": _checksum(manifest)}, indent=1)
                (partial / "manifest.json").write_text(text + "\n", encoding="utf-8")
                _remove(folder)
                partial.rename(folder)
    except OSError as error:
        raise UserError(
            f"cannot write the cache {folder} ({error.strerror}): free some space, or set another data.cache_dir"
        ) from error
    return folder, manifest


def lists_to_tuples(value: Any) -> Any:
    """Turn lists, as JSON has them, back into tuples, at any depth."""
    return tuple(map(lists_to_tuples, value)) if isinstance(value, list) else value


def _manifest(folder: Path, sources: str) -> dict[str, Any]:
    """Return the manifest of a cache; empty if it is missing, damaged, or not of these sources."""
    try:
        manifest = dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
        checksum = manifest.pop("checksum", "")
        if manifest.get("sources") != sources or not checksum:  # stale, or of a version before 0.4
            return {}
        problem = "" if checksum == _checksum(manifest) else "manifest.json does not match its checksum"
        for name, sample in manifest["data"].items() if not problem else ():
            if _sample(folder / name) != sample:
                problem = f"{name} has changed"
    except FileNotFoundError as error:
        if not folder.is_dir():
            return {}
        problem = f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, TypeError) as error:
        problem = f"{error}"
    if problem:
        print(f"the cache {folder} is damaged ({problem}): building it again", file=sys.stderr)
    return {} if problem else manifest


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sample(file: Path) -> str:
    """A hash of a file's size and of some blocks throughout it, since reading all of a large file takes minutes."""
    with file.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        digest, count = hashlib.sha256(str(size).encode()), min(SAMPLES, size // BLOCK + 1)
        for number in range(count):
            stream.seek(number * max(size - BLOCK, 0) // max(count - 1, 1))
            digest.update(stream.read(BLOCK))
    return digest.hexdigest()


def _remove(path: Path) -> None:
    """Remove a folder, or the file in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
