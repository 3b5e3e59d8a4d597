"""Helpers shared by the readers: file lists, unreadable samples, and caches that are built once."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from filelock import FileLock

from ..errors import UserError

T = TypeVar("T")


class UnreadableError(Exception):
    """A sample that cannot be read; the message says why."""


def list_files(root: Path, pattern: str = "*", suffixes: Collection[str] = ()) -> list[Path]:
    """Files in a folder and its subfolders, sorted by name, without hidden ones; `suffixes` are lowercase."""
    matches = (file for file in root.rglob(pattern) if not suffixes or file.suffix.lower() in suffixes)
    visible = (file for file in matches if not any(part.startswith(".") for part in file.relative_to(root).parts))
    return sorted(file for file in visible if file.is_file())


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


class Skipped:
    """Collects the unreadable files, which are skipped.

    Raises:
        UserError: from `add`, when more than the fraction `max_unreadable` of `total` files was skipped.
    """

    def __init__(self, total: int, max_unreadable: float) -> None:
        self.total, self.max_unreadable = total, max_unreadable
        self.problems: list[str] = []

    def add(self, file: object, reason: str) -> None:
        """Skip one file."""
        self.problems.append(f"{file}: {' '.join(reason.split())}")
        if len(self.problems) > self.max_unreadable * self.total:
            raise UserError(
                f"{len(self.problems)} of {self.total} cannot be read ({abbreviate(self.problems, 3)}): "
                f"fix or remove them, or raise data.max_unreadable={self.max_unreadable:g}"
            )


class ReplacingReader(Generic[T]):
    """Reads samples by index; an unreadable sample is replaced by the next readable one.

    The replacement depends on the files alone. Unreadable files are counted across all worker processes.

    Raises:
        UserError: from a call, when more than the fraction `max_unreadable` of the files is unreadable.
    """

    def __init__(self, files: Sequence[Path], read: Callable[[int], T], max_unreadable: float) -> None:
        self.files, self.read, self.max_unreadable = files, read, max_unreadable
        self.unreadable = torch.zeros(len(files), dtype=torch.uint8).share_memory_()

    def __call__(self, index: int) -> T:
        for candidate in chain(range(index, len(self.files)), range(index)):
            if self.unreadable[candidate]:
                continue
            try:
                return self.read(candidate)
            except UnreadableError as error:
                self._skip(candidate, error)
        raise UserError(f"none of the {len(self.files)} files can be read, {abbreviate(self.files)}: give other files")

    def _skip(self, index: int, error: UnreadableError) -> None:
        self.unreadable[index] = 1
        count = int(self.unreadable.sum())
        if count > self.max_unreadable * len(self.files):
            raise UserError(
                f"{count} of {len(self.files)} files cannot be read, the last is {self.files[index]} ({error}): fix or "
                f"remove them, or raise data.max_unreadable={self.max_unreadable:g}"
            )
        print(f"skipped: {self.files[index]}: {error}", file=sys.stderr)


def fingerprint(files: Iterable[Path]) -> str:
    """A hash of the files' names, sizes and modification times; a cache with another fingerprint is stale."""
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        digest.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def build_once(
    cache: Path, kind: str, settings: dict[str, Any], files: Collection[Path], build: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """Return the cache folder that `build` filled from these files, and its manifest with what `build` returned.

    The folder is rebuilt when a file has changed. One process builds it while other ranks and runs wait. A build that
    is killed leaves nothing that a later run would use.

    Raises:
        UserError: the cache cannot be written.
    """
    name = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder, sources = cache / f"{kind}-{name}", fingerprint(files)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{kind}-{name}.lock"):
            manifest = _manifest(folder)
            if manifest.get("sources") != sources:
                partial = folder.with_name(f"{folder.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                manifest = {"sources": sources, "files": len(files), "settings": settings, **build(partial)}
                text = json.dumps(manifest, indent=1, default=str)
                (partial / "manifest.json").write_text(text + "\n", encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
                manifest = json.loads(text)
    except OSError as error:
        raise UserError(
            f"cannot write the cache {folder} ({error.strerror}): free some space, or set another data.cache_dir"
        ) from error
    return folder, manifest


def lists_to_tuples(value: Any) -> Any:
    """Turn lists, as JSON has them, back into tuples, at any depth."""
    return tuple(map(lists_to_tuples, value)) if isinstance(value, list) else value


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
