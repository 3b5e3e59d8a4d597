"""Your own text: tokenized once, in parallel, and then memory-mapped."""

import glob
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from ..errors import UserError
from .common import build_once, list_files
from .library import library_files, library_validation
from .tokenizer import Tokenizer, open_tokenizer
from .unreadable import Skipped, unreadable
from .windows import Text, in_validation

CHUNK = 2**18
"""Bytes tokenized at once: enough to keep a thread busy, and small enough to queue in memory."""
PAGE_CACHE = 2**31
"""Bytes that the operating system is certain to keep in its page cache."""


@dataclass(frozen=True)
class Piece:
    """A byte range of a file."""

    file: Path
    begin: int
    end: int


def read(
    path: Path | None, pattern: str, tokenizer: str, val_fraction: float, max_unreadable: float, cache: Path
) -> Text:
    """Read your own files, or the standard library, as tokens, which are stored once and then memory-mapped.

    Raises:
        UserError: there is no such file, folder or tokenizer; too many files are unreadable; the cache is not writable.
    """
    root, files = library_files() if path is None else _find(path, pattern)
    settings = {"path": (path or root).absolute(), "pattern": pattern, "tokenizer": tokenizer}
    settings |= {"val_fraction": val_fraction, "max_unreadable": max_unreadable}
    if path is None:
        settings |= {"split": "by family"}  # a cache of before 0.4 is split by file
        in_val = library_validation(root, files, val_fraction)
    else:
        in_val = {file for file in files if in_validation(file, root, val_fraction)}
    tokenizer_file = [Path(tokenizer)] if tokenizer.endswith(".json") and Path(tokenizer).is_file() else []

    def build(folder: Path) -> dict[str, Any]:
        opened = open_tokenizer(tokenizer)
        readable, problems = _readable(files, opened, max_unreadable)
        return {**_write(folder, _split(readable, in_val, val_fraction), opened), "problems": problems}

    folder, manifest = build_once(cache, "text", settings, [*files, *tokenizer_file], build)
    train, val = (_memory_mapped(folder / name, manifest["vocabulary"], manifest[name]) for name in ("train", "val"))
    small = train.nbytes + val.nbytes < PAGE_CACHE
    return Text(train, val, manifest["vocabulary"], manifest["bytes_per_token"], small, tuple(manifest["problems"]))


def _find(path: Path, pattern: str) -> tuple[Path, list[Path]]:
    """The files, and the folder that their relative names start from."""
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        if files := list_files(path, pattern):
            return path, files
        raise UserError(f"data.path={path} has no file that matches data.pattern={pattern}: change one of them")
    if not glob.has_magic(str(path)):
        raise UserError(f"data.path={path} does not exist: give a text file, a folder of them or a glob")
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not found:
        raise UserError(f"data.path={path} matches no file: fix the glob; ** matches folders at any depth")
    fixed = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
    return Path(*path.parts[:fixed]), found


def _readable(
    files: list[Path], tokenizer: Tokenizer, max_unreadable: float
) -> tuple[list[tuple[Path, int]], list[str]]:
    """The readable files with their sizes, and messages about the others."""
    skipped, readable, empty = Skipped(len(files), max_unreadable), [], 0
    for file in tqdm(files, desc="files", disable=None):
        try:
            size = file.stat().st_size
            for chunk in _chunks(Piece(file, 0, size)):
                if tokenizer.name == "bytes":
                    break  # any byte is valid, so the first chunk is enough to see that the file can be read
                chunk.decode()
        except UnicodeDecodeError as error:
            skipped.add(file, f"not UTF-8 ({error.reason}), which every data.tokenizer except bytes needs")
        except OSError as error:
            skipped.add(file, str(unreadable(error, file)))
        else:
            empty += not size
            readable += [(file, size)] if size else []
    return readable, skipped.problems + ([f"{empty} of {len(files)} files are empty"] if empty else [])


def _split(files: list[tuple[Path, int]], in_val: set[Path], val_fraction: float) -> tuple[list[Piece], list[Piece]]:
    """Split by file; if that leaves a split empty, split the text at one position."""
    splits: tuple[list[Piece], list[Piece]] = ([], [])
    for file, size in files:
        splits[file in in_val].append(Piece(file, 0, size))
    return splits if all(splits) else _split_at_end(files, val_fraction)


def _split_at_end(files: list[tuple[Path, int]], val_fraction: float) -> tuple[list[Piece], list[Piece]]:
    """Use the end of the text for validation, from the next complete character on."""
    train, val = [], []
    left = round(sum(size for _, size in files) * (1 - val_fraction))
    for file, size in files:
        cut = min(left, size)
        left -= cut
        if 0 < cut < size:
            with file.open("rb") as stream:
                stream.seek(cut)
                cut += _continuation_bytes(stream.read(3))
        train += [Piece(file, 0, cut)] if cut else []
        val += [Piece(file, cut, size)] if cut < size else []
    return train, val


def _continuation_bytes(block: bytes) -> int:
    """Number of leading bytes that belong to a UTF-8 character which started earlier."""
    return len(block) - len(block.lstrip(bytes(range(0x80, 0xC0))))


def _chunks(piece: Piece) -> Iterator[bytes]:
    """Read a piece in chunks of about `CHUNK` bytes that end with a line or, else, with a complete character."""
    with piece.file.open("rb") as stream:
        stream.seek(piece.begin)
        left, rest = piece.end - piece.begin, b""
        while block := stream.read(min(CHUNK, left)):
            left -= len(block)
            block = rest + block
            cut = (block.rfind(b"\n") + 1 or _complete_length(block)) if left else len(block)
            yield block[:cut]
            rest = block[cut:]
        if rest:
            yield rest


def _complete_length(block: bytes) -> int:
    """Length of a block without its last UTF-8 character, which may be incomplete."""
    begins = [len(block) - back for back in range(1, min(4, len(block)) + 1) if block[-back] & 0xC0 != 0x80]
    return max(begins, default=len(block))


def _write(folder: Path, splits: tuple[list[Piece], list[Piece]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Write the tokens of train and val as plain arrays."""
    about: dict[str, Any] = {"vocabulary": tokenizer.vocabulary}
    sizes = [sum(piece.end - piece.begin for piece in pieces) for pieces in splits]
    with tqdm(total=sum(sizes), desc="tokens", unit="B", unit_scale=True, disable=None) as bar:
        for name, pieces in zip(("train", "val"), splits, strict=True):
            about[name] = 0
            with (folder / name).open("wb") as target:
                for tokens, size in _encode_all(tokenizer.encode, chain.from_iterable(map(_chunks, pieces))):
                    tokens.astype(_storage_type(tokenizer.vocabulary), copy=False).tofile(target)
                    about[name] += len(tokens)
                    bar.update(size)
    return {**about, "bytes_per_token": sizes[1] / max(about["val"], 1)}


def _encode_all(encode: Callable[[bytes], NDArray[Any]], chunks: Iterable[bytes]) -> Iterator[tuple[NDArray[Any], int]]:
    """Encode chunks in order, in threads, because tokenizers release the GIL; only a few chunks are queued."""
    threads = os.cpu_count() or 1
    queued: deque[tuple[Future[NDArray[Any]], int]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for chunk in chunks:
            queued.append((pool.submit(encode, chunk), len(chunk)))
            if len(queued) > 2 * threads:
                done, size = queued.popleft()
                yield done.result(), size
        for done, size in queued:
            yield done.result(), size


def _storage_type(vocabulary: int) -> type[np.integer[Any]]:
    return np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.int32


def _memory_mapped(file: Path, vocabulary: int, count: int) -> Tensor:
    dtype = {np.uint8: torch.uint8, np.uint16: torch.int16, np.int32: torch.int32}[_storage_type(vocabulary)]
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.from_file(str(file), shared=False, size=count, dtype=dtype)
