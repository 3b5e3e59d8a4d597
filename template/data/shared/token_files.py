"""Tokens of a large text for data.py: in a file that is written once, and not in memory."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True)
class TokenFile:
    """Tokens `begin` to `end` of a file, such as those for training."""

    file: Path
    dtype: torch.dtype
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, part: slice) -> "TokenFile":
        begin, end, _ = part.indices(len(self))
        return replace(
            self,
            begin=self.begin + begin,
            end=self.begin + end,
        )


class WindowsInFile(Dataset[tuple[Tensor, ...]]):
    """Windows of `context` tokens and the next one.

    A batch is one tensor (n, context + 1).
    """

    in_memory = True  # worker processes would not help, as reading takes microseconds

    def __init__(self, tokens: TokenFile, context: int) -> None:
        self.tokens = tokens
        self.context = context

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        dtype = self.tokens.dtype
        content = bytearray()
        # not mapped into memory, where pages that were read count as the process's
        with self.tokens.file.open("rb", buffering=0) as stream:
            for index in indices:
                first = self.tokens.begin + index * self.context
                stream.seek(first * dtype.itemsize)
                content += stream.read((self.context + 1) * dtype.itemsize)
        tokens = torch.frombuffer(content, dtype=dtype)
        return (tokens.view(len(indices), -1),)


def name_of(files: list[Path], *options: str) -> str:
    """Return a hash of options and of the names, sizes and times of files."""
    digest = hashlib.sha256(repr(options).encode())
    for file in files:
        status = file.stat()
        line = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def write_once(
    folder: Path,
    name: str,
    parts: Iterable[tuple[NDArray[Any], int]],
    dtype: torch.dtype,
) -> tuple[TokenFile, int]:
    """Return the tokens of all parts, and the number of bytes of their text.

    The parts are read if there is no file of this name, which ends with the number of bytes.
    """
    file = next(folder.glob(f"{name}-*.bin"), None)
    if file is None:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{name}.{os.getpid()}"
        try:
            size = 0
            with unfinished.open("wb") as stream:
                for tokens, bytes_of_text in parts:
                    tokens.tofile(stream)
                    size += bytes_of_text
            file = unfinished.replace(folder / f"{name}-{size}.bin")
        finally:
            unfinished.unlink(missing_ok=True)
    count = file.stat().st_size // dtype.itemsize
    size = int(file.stem.partition("-")[2])
    return TokenFile(file, dtype, 0, count), size
