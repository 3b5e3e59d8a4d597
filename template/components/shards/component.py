"""Data sets in many files: tar, JSON lines, Parquet.

They are read in parallel, shuffled, and resumed at any sample. In `load` of data.py, where `decode`
makes tensors and numbers of {"__key__": "0017", "png": bytes, "cls": bytes}:

    from .components.shards import Tar  # within `load`, as components import data.py

    return Tar("data/train-*.tar", decode), list(Tar("data/val-*.tar", decode)), spec
"""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from tarfile import TarError, TarFile
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import IterableDataset

from ..errors import UserError

fsspec: Any = import_module("fsspec")  # which torch requires; it has no types
Files = str | Path | Sequence[str | Path]


class Shards(IterableDataset[Any]):
    """Samples in files: a path, or several, with `*`, or a URL that fsspec knows.

    Such as s3://bucket/train-*.tar. `decode` makes tensors or numbers of a sample. Training
    shuffles the files, and the samples in windows of `shuffle` samples, 1 for neither; `iter` is
    one pass in the order of the files, as a validation set needs.
    """

    parse: Callable[[Any], Any] | None = None  # makes what `decode` gets of what `read` yields

    def __init__(
        self, files: Files, decode: Callable[[Any], Any] | None = None, shuffle: int = 1000
    ) -> None:
        self.functions = [function for function in (self.parse, decode) if function]
        self.shuffle = max(shuffle, 1)
        several = [files] if isinstance(files, str | Path) else files
        patterns = [str(pattern) for pattern in several]
        names: set[str] = set()
        for pattern in patterns:
            names.update(_expand(pattern))
        self.files = sorted(names)
        if not self.files:
            raise UserError(f"no file matches {', '.join(patterns)}: correct the path")

    def read(
        self,
        stream: Any,
        position: int,
    ) -> Iterator[tuple[Any, int]]:
        """Yield the samples of a file from a position, a byte or a row, on.

        Each with the position after it.
        """
        raise NotImplementedError

    def located(
        self,
        file: str,
        position: int,
    ) -> Iterator[tuple[Any, str, int]]:
        """Yield what `read` yields with the place of each sample, for messages."""
        try:
            with fsspec.open(file, "rb") as stream:
                for content, after in self.read(stream, position):
                    yield content, f"{file} at {position}", after
                    position = after
        except (OSError, ValueError, NotImplementedError, TarError, EOFError) as error:
            why = _first_line(error)
            raise UserError(f"cannot read {file} ({why}): restore it, or remove it") from error

    def decode(self, content: Any, place: str) -> Any:
        try:
            for function in self.functions:
                content = function(content)
            return content
        except (UserError, MemoryError):
            raise
        except Exception as error:  # of the owner's function
            why = f"{type(error).__name__}: {_first_line(error)}"
            raise UserError(
                f"cannot decode the sample in {place} ({why}): correct it, or remove it"
            ) from error

    def __iter__(self) -> Iterator[Any]:
        for file in self.files:
            for content, place, _ in self.located(file, 0):
                yield self.decode(content, place)

    def reader(self, number: int, count: int, seed: int) -> "Reader":
        """Return one of `count` readers, which share the samples of each pass."""
        return Reader(self, number, count, seed)


class Reader:
    """Reads its share of the files, pass after pass; every `count`-th sample of fewer files."""

    def __init__(
        self,
        shards: Shards,
        number: int,
        count: int,
        seed: int,
    ) -> None:
        self.shards = shards
        self.number = number
        self.count = count
        self.seed = seed
        self.epoch = 0
        self.taken = 0  # samples from the window
        self.begin: tuple[int, ...] = (0, 0, 0)
        """Where the window begins: number of the file, position in it, samples before it."""

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "begin": self.begin, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.begin = tuple(state["begin"])
        self.taken = state["taken"]

    def __iter__(self) -> Iterator[Any]:
        while True:
            samples = self._pass()
            while window := list(islice(samples, self.shards.shuffle)):
                order = _shuffled(len(window), self.seed, self.number, self.epoch, *self.begin)
                while self.taken < len(window):
                    content, place, _ = window[order[self.taken]]
                    self.taken += 1
                    yield self.shards.decode(content, place)
                self.begin = window[-1][2]
                self.taken = 0
            if self.begin == (0, 0, 0):
                files = ", ".join(self._files())[:200]
                raise UserError(f"there are no samples in {files}: remove or fill them")
            self.epoch += 1
            self.begin = (0, 0, 0)

    def _files(self) -> list[str]:
        files = self.shards.files
        if self.shards.shuffle > 1:
            files = [files[index] for index in _shuffled(len(files), self.seed, self.epoch)]
        return files[self.number :: self.count] if len(files) >= self.count else files

    def _pass(self) -> Iterator[tuple[Any, str, tuple[int, ...]]]:
        """Yield what is left of this pass, with places, and where the next window can begin."""
        files = self._files()
        shared = len(self.shards.files) < self.count
        first, position, seen = self.begin
        for number in range(first, len(files)):
            for content, place, after in self.shards.located(files[number], position):
                seen += 1
                if not shared or seen % self.count == self.number:
                    yield content, place, (number, after, seen)
            position = 0


class JsonLines(Shards):
    """Samples are the lines of text files: what `json.loads` returns."""

    parse = staticmethod(json.loads)

    def read(
        self,
        stream: Any,
        position: int,
    ) -> Iterator[tuple[Any, int]]:
        stream.seek(position)
        for line in stream:
            position += len(line)
            if line.strip():
                yield line, position


class Parquet(Shards):
    """Samples are rows: dicts of the `columns`, or of all."""

    def __init__(
        self,
        *arguments: Any,
        columns: list[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.columns = columns

    def read(
        self,
        stream: Any,
        position: int,
    ) -> Iterator[tuple[Any, int]]:
        try:
            file = import_module("pyarrow.parquet").ParquetFile(stream)
        except ImportError:
            raise UserError(
                "Parquet files need pyarrow: add pyarrow>=17 to pyproject.toml, and install it"
            ) from None
        row = 0
        for group in range(file.num_row_groups):
            end = row + file.metadata.row_group(group).num_rows
            if end <= position:
                row = end
                continue
            batches = file.iter_batches(1024, row_groups=[group], columns=self.columns)
            for batch in batches:
                for sample in batch.to_pylist():
                    row += 1
                    if row > position:
                        yield sample, row


class Tar(Shards):
    """Samples are successive files with one name up to the first dot, as in WebDataset.

    They are bytes by extension, and `__key__`. A .tar.gz cannot be read from the middle: unpack it.
    The files within may be packed.
    """

    def read(self, stream: Any, position: int) -> Iterator[tuple[Any, int]]:
        stream.seek(position)
        archive: Any = TarFile(fileobj=stream)
        sample: dict[str, Any] = {}
        while member := archive.next():
            archive.members.clear()  # which would grow
            folder, slash, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            key = folder + slash + stem
            content = archive.extractfile(member)
            if not content or not stem:  # a folder, or a hidden file
                continue
            if sample.get("__key__", key) != key:
                yield sample, member.offset
                sample = {}
            sample |= {"__key__": key, extension: content.read()}
        stream.seek(archive.offset)
        if stream.read(512) != bytes(512):  # tarfile takes a damaged header for the end
            raise ValueError(f"damaged or cut off at byte {archive.offset}")
        if sample:
            yield sample, archive.offset


def _expand(pattern: str) -> list[str]:
    system, path = fsspec.url_to_fs(pattern)
    names = system.glob(path)
    if "://" in pattern:
        return [str(system.unstrip_protocol(name)) for name in names]
    return list(names)


def _shuffled(count: int, *key: int) -> list[int]:
    """Return the numbers below `count` in a random order, which follows from the key."""
    generator = torch.Generator().manual_seed(crc32(repr(key).encode()))
    return torch.randperm(count, generator=generator).tolist()


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
