"""Where shards are: in folders or, through fsspec, in buckets; used by `shards.py`."""

import io
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .common import abbreviate

SUFFIXES = {".tar": "tar", ".jsonl": "lines", ".ndjson": "lines", ".json": "lines", ".parquet": "parquet"}
COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz", ".lz4")
OPEN = 16
"""Files that a process keeps open."""


def location(path: str) -> str:
    """Return a path for messages, without the parameters of a URL, which may be secret."""
    return path.partition("?")[0] if "://" in path else path


@dataclass(frozen=True)
class Storage:
    """The shards: paths of this machine, or URLs for fsspec."""

    paths: list[str]
    suffix: str

    @classmethod
    def find(cls, files: Any) -> "Storage":
        """List the files that paths, patterns such as `data/*.tar`, or URLs such as `s3://bucket/*.tar` name, sorted.

        Raises:
            UserError: there are none, or they are of several formats or an unknown one.
        """
        given = [os.path.expanduser(str(file)) for file in ([files] if isinstance(files, str | Path) else files)]
        paths = sorted({path for one in given for path in _expand(one)})
        if not paths:
            raise UserError(f"no shards match {abbreviate([location(one) for one in given], 3)}: correct the path")
        suffixes = {Path(location(path)).suffix.lower() for path in paths}
        if packed := sorted(suffixes & {*COMPRESSED}):
            raise UserError(
                f"shards *{packed[0]} cannot be read from the middle: unpack them; a tar may hold packed files"
            )
        formats = {SUFFIXES.get(suffix, "") for suffix in suffixes}
        if len(formats) > 1 or "" in formats:
            found, known = ", ".join(sorted(suffix or "without suffix" for suffix in suffixes)), ", ".join(SUFFIXES)
            raise UserError(f"shards are {found}, such as {location(paths[0])}: they must be files of one of {known}")
        return cls(paths, formats.pop())

    @property
    def local(self) -> list[Path]:
        """The shards that are on this machine."""
        return [Path(path) for path in self.paths if "://" not in path]

    def describe(self) -> list[str]:
        """Return what changes when a shard does, for those that are elsewhere.

        Raises:
            UserError: one is not there.
        """
        try:
            return [f"{location(it)} {_system(it).ukey(_system_path(it))}" for it in self.paths if "://" in it]
        except FileNotFoundError as error:
            raise UserError(f"no shard {location(str(error))}: correct the path") from error

    def open(self, shard: int) -> Any:
        """Open a shard to read it in one go."""
        path = self.paths[shard]
        return open(path, "rb") if "://" not in path else _system(path).open(_system_path(path), "rb")

    def ranges(self, shard: int, files: OrderedDict[int, Any], begins: list[int], ends: list[int]) -> list[bytes]:
        """Read parts of a shard: of one elsewhere, all at the same time if its file system can."""
        path = self.paths[shard]
        if "://" in path:
            name = _system_path(path)
            found: list[Any] = _system(path).cat_ranges([name] * len(begins), begins, ends)
            failed = [part for part in found if isinstance(part, Exception)]
            if failed:
                raise OSError(str(failed[0]))
            return found
        if shard not in files:
            files[shard] = _File(path)
            while len(files) > OPEN:
                files.popitem(last=False)[1].close()
        files.move_to_end(shard)
        parts, descriptor = [], files[shard].fileno()
        for begin, end in zip(begins, ends, strict=True) if hasattr(os, "posix_fadvise") else ():
            os.posix_fadvise(descriptor, begin, end - begin, os.POSIX_FADV_WILLNEED)  # all at the same time
        for begin, end in zip(begins, ends, strict=True):
            files[shard].seek(begin)
            parts.append(files[shard].read(end - begin))
        return parts


class _File(io.FileIO):
    """A file that is open for as long as it is kept."""

    def __del__(self) -> None:
        self.close()


def _system(path: str) -> Any:
    """Return the file system of a URL; fsspec keeps one per process."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(path)[0]
    except (ImportError, ValueError) as error:
        raise UserError(f"{location(path)} cannot be opened ({error}): install what fsspec names") from error


def _system_path(path: str) -> str:
    import fsspec

    return str(fsspec.core.url_to_fs(path)[1])


def _expand(path: str) -> list[str]:
    path = path if "://" in path else os.path.expanduser(path)
    signs = "*[" if "://" in path else "*?["  # a URL may end with a query
    if not any(sign in path for sign in signs) or os.path.exists(path):
        return [path]
    if "://" in path:
        return [str(_system(path).unstrip_protocol(found)) for found in _system(path).glob(_system_path(path))]
    root, pattern = Path(Path(path).anchor or "."), Path(path)
    parts = pattern.relative_to(root) if pattern.is_absolute() else pattern
    return [str(found) for found in root.glob(str(parts)) if found.is_file()]
