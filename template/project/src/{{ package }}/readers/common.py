"""What all readers share: which files count, what is left out, and a cache that is made once."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
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
    """Files below a folder by the order of names, without hidden ones; `suffixes` in small letters, all if none."""
    found = (file for file in root.rglob(pattern) if not suffixes or file.suffix.lower() in suffixes)
    seen = (file for file in found if not any(part.startswith(".") for part in file.relative_to(root).parts))
    return sorted(file for file in seen if file.is_file())


def some(names: Collection[object], most: int = 5) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(str(name) for name in list(names)[:most]) + more


class Skipped:
    """What cannot be read, and so is left out: counted, told, and at most a share of all.

    Raises:
        UserError: from `add`, when it has become more than `most`, which is `data.max_unreadable`, of `total`.
    """

    def __init__(self, total: int, most: float) -> None:
        self.total, self.most = total, most
        self.problems: list[str] = []

    def add(self, what: object, why: str) -> None:
        """Leave one out."""
        self.problems.append(f"{what}: {' '.join(why.split())}")
        if len(self.problems) > self.most * self.total:
            raise UserError(
                f"{len(self.problems)} of {self.total} cannot be read ({some(self.problems, 3)}): mend or remove them, "
                f"or raise data.max_unreadable={self.most:g}"
            )


class Substituting(Generic[T]):
    """Reads one sample at a time, and in the place of one that cannot be read the next that can.

    What it is replaced by depends on nothing but the files. Those found bad are counted over all loader processes.

    Raises:
        UserError: from a call, when more than `most`, which is `data.max_unreadable`, of all have turned out bad.
    """

    def __init__(self, files: Sequence[Path], read: Callable[[int], T], most: float) -> None:
        self.files, self.read, self.most = files, read, most
        self.bad = torch.zeros(len(files), dtype=torch.uint8).share_memory_()

    def __call__(self, index: int) -> T:
        for place in chain(range(index, len(self.files)), range(index)):
            if self.bad[place]:
                continue
            try:
                return self.read(place)
            except UnreadableError as error:
                self._leave_out(place, error)
        raise UserError(f"none of the {len(self.files)} files can be read, {some(self.files)}: give others")

    def _leave_out(self, place: int, error: UnreadableError) -> None:
        self.bad[place] = 1
        found = int(self.bad.sum())
        if found > self.most * len(self.files):
            raise UserError(
                f"{found} of {len(self.files)} files cannot be read, the last {self.files[place]} ({error}): mend or "
                f"remove them, or raise data.max_unreadable={self.most:g}"
            )
        print(f"left out: {self.files[place]}: {error}", file=sys.stderr)


def fingerprint(files: Iterable[Path]) -> str:
    """A hash of the files' names, sizes and times of change: another one means that what was made of them is stale."""
    digest = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest.update(f"{file}\0{about.st_size}\0{about.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def made_once(
    cache: Path, kind: str, settings: dict[str, Any], files: Collection[Path], make: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """Return the folder that `make` filled from these files, and its manifest, with what `make` returned in it.

    It is made again when a file has changed. Ranks and other runs wait for the one process that makes it. One that dies
    half-way leaves nothing that counts.

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
                manifest = {"sources": sources, "files": len(files), "settings": settings, **make(partial)}
                text = json.dumps(manifest, indent=1, default=str)
                (partial / "manifest.json").write_text(text + "\n", encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
                manifest = json.loads(text)
    except OSError as error:
        raise UserError(
            f"cannot write the cache {folder} ({error.strerror}): free some space, or give another data.cache_dir"
        ) from error
    return folder, manifest


def frozen(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
