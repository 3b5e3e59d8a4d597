"""Where shards are, what their index has, and how samples are read from them; used by `shards.py`."""

import hashlib
import io
import json
import os
import tarfile
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .common import abbreviate, build_once

SUFFIXES = {".tar": "tar", ".jsonl": "lines", ".ndjson": "lines", ".json": "lines", ".parquet": "parquet"}
COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz", ".lz4")
OPEN, GROUPS = 16, 8
"""Files, and decoded row groups of Parquet, that a process keeps."""
CHANGED = "it has changed since the run began"
Offsets = NDArray[np.int64]


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
        given = [str(files)] if isinstance(files, str | Path) else [str(file) for file in files]
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


def tar_offsets(stream: Any) -> tuple[list[int], Offsets]:
    """Return the number of samples, and where each begins and the last ends."""
    begins, key, end = [], None, 0
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in archive:
            if member.islnk() or member.issym():
                raise ValueError(f"{member.name} is a link, whose content is elsewhere")
            if _is_hidden(member):
                continue
            if (name := _key(member.name)) != key:
                begins.append(member.offset)
                key = name
            end = member.offset_data + (member.size + 511) // 512 * 512
        stream.seek(archive.offset)  # where blocks of zeros begin; tarfile takes anything for the end
        rest = stream.read(512)
        if len(rest) < 512 or any(part.strip(b"\0") for part in (rest, *iter(partial(stream.read, 2**20), b""))):
            raise ValueError(f"it is cut off or damaged at byte {archive.offset}")
    return [len(begins)], np.asarray([*begins, end], np.int64)


def _is_hidden(member: tarfile.TarInfo) -> bool:
    """Whether it is no file, or one that a file manager has added."""
    return not member.isfile() or member.name.rpartition("/")[2].startswith(".")


def _key(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def line_offsets(stream: Any) -> tuple[list[int], Offsets]:
    """Return the number of lines that are not empty, and where each begins and ends."""
    found, place = array("q"), 0
    for line in stream:
        if line.strip():
            found.extend((place, place + len(line)))
        place += len(line)
    return [len(found) // 2], np.asarray(found, np.int64)


def parquet_groups(stream: Any) -> tuple[list[int], Offsets]:
    """Return the number of rows in each row group."""
    metadata = _parquet().ParquetFile(stream).metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)], np.zeros(0, np.int64)


def _parquet() -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError("Parquet shards need a package: pip install pyarrow") from error
    return parquet


def _tar_sample(data: bytes) -> dict[str, Any]:
    sample, keys = dict[str, Any](), set[str]()
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            if _is_hidden(member):
                continue
            content: Any = archive.extractfile(member)
            sample["__key__"] = _key(member.name)
            sample[member.name.rpartition("/")[2].partition(".")[2].lower()] = content.read()
            keys.add(sample["__key__"])
    if len(keys) != 1:
        raise ValueError(CHANGED)
    return sample


def _line_sample(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"a line is a {type(found).__name__}, and no object")
    return found


def _by_offsets(parse: Callable[[bytes], dict[str, Any]], width: int) -> Callable[..., Iterator[dict[str, Any]]]:
    """Return what reads rows by their offsets, of which `width` follow each other from one row to the next."""

    def read(shards: Any, shard: int, rows: list[int]) -> Iterator[dict[str, Any]]:
        offsets, path = shards.index[shard], location(shards.storage.paths[shard])
        begins, ends = ([int(offsets[row * width + side]) for row in rows] for side in (0, 1))
        files = shards.readers.setdefault(os.getpid(), OrderedDict())
        try:
            parts = shards.storage.ranges(shard, files, begins, ends)
        except OSError as error:
            raise UserError(f"cannot read {path} ({error.strerror or error}): restore it, then resume") from error
        for row, begin, end, part in zip(rows, begins, ends, parts, strict=True):
            try:
                if len(part) != end - begin:
                    raise ValueError(CHANGED)
                yield parse(part)
            except (ValueError, tarfile.TarError, RecursionError) as error:
                raise UserError(f"{path}, sample {row}: {error}: restore the shard, then resume") from error

    return read


def _read_rows(shards: Any, shard: int, rows: list[int]) -> Iterator[dict[str, Any]]:
    kept = shards.readers.setdefault(os.getpid(), OrderedDict())
    counts = shards.counts[shard]
    ends = np.cumsum(counts)
    groups = np.searchsorted(ends, rows, side="right")
    for group in np.unique(groups).tolist():
        if (shard, group) not in kept:
            kept[shard, group] = _read_group(shards, shard, group)
            while len(kept) > max(GROUPS, 2 * shards.window // max(counts)):
                kept.popitem(last=False)
        kept.move_to_end((shard, group))
        yield from (
            kept[shard, group].take(np.asarray(rows)[groups == group] - (ends[group] - counts[group])).to_pylist()
        )


def _read_group(shards: Any, shard: int, group: int) -> Any:
    path = location(shards.storage.paths[shard])
    try:
        with shards.storage.open(shard) as stream:
            file = _parquet().ParquetFile(stream)
            names = file.schema_arrow.names
            if missing := [name for name in shards.columns or () if not {name, name.partition(".")[0]} & {*names}]:
                raise UserError(f"{path} has no column {', '.join(missing)}: it has {abbreviate(names)}")
            table = file.read_row_group(group, columns=shards.columns)
    except (OSError, ValueError, LookupError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot read {path}, row group {group} ({reason}): restore it, then resume") from error
    if len(table) != shards.counts[shard][group]:
        raise UserError(f"{path}, row group {group}: {CHANGED}: restore the shard, then resume")
    return table


@dataclass(frozen=True)
class Format:
    """How shards of a format are indexed and read."""

    scan: Callable[[Any], tuple[list[int], Offsets]]
    read: Callable[..., Iterator[dict[str, Any]]]
    by_group: bool = False


FORMATS = {
    "tar": Format(tar_offsets, _by_offsets(_tar_sample, 1)),
    "lines": Format(line_offsets, _by_offsets(_line_sample, 2)),
    "parquet": Format(parquet_groups, _read_rows, by_group=True),
}


def build_index(storage: Storage, cache: Path) -> tuple[list[list[int]], list[Offsets]]:
    """Return the samples in each group of each shard, and the offsets of each shard, from a cache.

    The index is built again when a shard has another size or time. One process builds it while others wait.

    Raises:
        UserError: a shard cannot be read, or they have no samples.
    """

    def scan(shard: int) -> tuple[list[int], Offsets]:
        path = location(storage.paths[shard])
        try:
            with storage.open(shard) as stream:
                return FORMATS[storage.suffix].scan(stream)
        except UserError:
            raise
        except (OSError, tarfile.TarError, ValueError, EOFError) as error:
            why = f"{error}".replace(storage.paths[shard], path)
            raise UserError(f"the shard {path} cannot be read ({why}): restore or remove it") from error

    def build(folder: Path) -> dict[str, Any]:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(scan, range(len(storage.paths))))
        np.save(folder / "offsets.npy", np.concatenate([offsets for _, offsets in found]))
        return {"groups": [groups for groups, _ in found], "lengths": [len(offsets) for _, offsets in found]}

    missing = [str(file) for file in storage.local if not file.is_file()]
    if missing:
        raise UserError(f"no shard {abbreviate(missing, 3)}: correct the path")
    names = [location(path) if "://" in path else os.path.abspath(path) for path in storage.paths]
    digest = hashlib.sha256("\n".join([*names, *storage.describe()]).encode(errors="surrogateescape")).hexdigest()
    folder, manifest = build_once(cache, "shards", {"shards": digest}, storage.local, build)
    if not sum(map(sum, manifest["groups"])):
        raise UserError(f"the {len(names)} shards {abbreviate(names, 2)} have no samples: give other files")
    offsets = np.load(folder / "offsets.npy", mmap_mode="r")
    ends = np.cumsum(manifest["lengths"])
    return manifest["groups"], [offsets[end - size : end] for end, size in zip(ends, manifest["lengths"], strict=True)]
