"""What the index of shards has, and how samples are read by it; used by `shards.py`."""

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
from .shard_files import Storage, location

GROUPS = 8
"""Decoded row groups of Parquet that a process keeps."""
CHANGED = "it has changed since the run began"
Offsets = NDArray[np.int64]


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


def _read_ranges(
    parse: Callable[[bytes], dict[str, Any]], width: int, shards: Any, shard: int, rows: list[int]
) -> Iterator[dict[str, Any]]:
    """Read rows by their offsets, of which `width` follow each other from one row to the next."""
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
    "tar": Format(tar_offsets, partial(_read_ranges, _tar_sample, 1)),
    "lines": Format(line_offsets, partial(_read_ranges, _line_sample, 2)),
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
