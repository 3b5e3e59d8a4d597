"""Your own text: files are made into tokens once, in parallel, and from then on mapped into memory."""

import glob
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from .common import Skipped, list_files, made_once
from .windows import Text, is_held_out, library_files

CHUNK = 2**18
"""Bytes that are made into tokens at once: enough to keep a thread busy, little enough to wait in memory."""
PAGE_CACHE = 2**31
"""Bytes that the system surely keeps in memory once they were read."""


@dataclass(frozen=True)
class Tokenizer:
    """From the bytes of a text to the numbers of its tokens, all below `vocabulary`, and from these to text."""

    name: str
    vocabulary: int
    encode: Callable[[bytes], NDArray[Any]]
    decode: Callable[[Sequence[int]], str]


def open_tokenizer(name: str) -> Tokenizer:
    """Open `bytes`, a file of Hugging Face's tokenizers, or an encoding that tiktoken knows.

    Raises:
        UserError: there is no such tokenizer, or its package or its vocabulary cannot be had.
    """
    if name == "bytes":
        return Tokenizer(name, 256, _as_bytes, lambda tokens: bytes(tokens).decode(errors="replace"))
    try:
        return _hugging_face(name) if name.endswith(".json") else _tiktoken(name)
    except ImportError as error:
        raise UserError(f"data.tokenizer={name} needs a package ({error}): pip install -e '.[tokenizers]'") from error


def _as_bytes(text: bytes) -> NDArray[Any]:
    return np.frombuffer(text, np.uint8)


def _hugging_face(name: str) -> Tokenizer:
    # The threads are ours; its own would be stopped, with a warning, in every loader process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    if not Path(name).is_file():
        raise UserError(f"data.tokenizer={name} does not exist: give a tokenizer.json, bytes, or a name of tiktoken's")
    try:
        file = tokenizers.Tokenizer.from_file(name)
    except Exception as error:  # the package has no narrower type
        raise UserError(f"data.tokenizer={name} is not of the tokenizers package ({error}): give another") from error
    file.no_truncation()
    file.no_padding()

    def encode(text: bytes) -> NDArray[Any]:
        return np.array(file.encode_batch_fast([text.decode()], add_special_tokens=False)[0].ids, np.int32)

    def decode(tokens: Sequence[int]) -> str:
        return str(file.decode(list(tokens), skip_special_tokens=False))

    return Tokenizer(name, max(file.get_vocab().values()) + 1, encode, decode)


def _tiktoken(name: str) -> Tokenizer:
    import tiktoken

    known = tiktoken.list_encoding_names()
    if name not in known:
        raise UserError(f"data.tokenizer={name} is unknown: give bytes, a .json file or one of {', '.join(known)}")
    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # from the network, or of a file that is not what it should be
        raise UserError(
            f"the vocabulary of data.tokenizer={name} cannot be fetched ({type(error).__name__}): connect this machine "
            "once, or copy the folder TIKTOKEN_CACHE_DIR from one that was"
        ) from error
    return Tokenizer(
        name,
        encoding.n_vocab,
        lambda text: encoding.encode_to_numpy(text.decode(), disallowed_special=()),
        lambda tokens: encoding.decode(list(tokens)),
    )


@dataclass(frozen=True)
class Piece:
    """Some bytes of a file."""

    file: Path
    begin: int
    end: int


def read(
    path: Path | None, pattern: str, tokenizer: str, val_fraction: float, max_unreadable: float, cache: Path
) -> Text:
    """Your own files (or the standard library) as tokens, which are made once and then mapped into memory.

    Raises:
        UserError: there is no such file, folder or tokenizer; too many cannot be read; the cache cannot be written.
    """
    root, files = library_files() if path is None else _find(path, pattern)
    settings = {"path": (path or root).absolute(), "pattern": pattern, "tokenizer": tokenizer}
    settings |= {"val_fraction": val_fraction, "max_unreadable": max_unreadable}
    own_file = [Path(tokenizer)] if tokenizer.endswith(".json") and Path(tokenizer).is_file() else []

    def make(folder: Path) -> dict[str, Any]:
        opened = open_tokenizer(tokenizer)
        sound, problems = _sound(files, opened, max_unreadable)
        return {**_write(folder, _split(root, sound, val_fraction), opened), "problems": problems}

    folder, manifest = made_once(cache, "text", settings, [*files, *own_file], make)
    train, val = (_mapped(folder / name, manifest["vocabulary"], manifest[name]) for name in ("train", "val"))
    small = train.nbytes + val.nbytes < PAGE_CACHE
    return Text(train, val, manifest["vocabulary"], manifest["bytes_per_token"], small, tuple(manifest["problems"]))


def _find(path: Path, pattern: str) -> tuple[Path, list[Path]]:
    """The files, and the folder to which their names are relative."""
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        if files := list_files(path, pattern):
            return path, files
        raise UserError(f"data.path={path} has no file that matches data.pattern={pattern}: change one of the two")
    if not glob.has_magic(str(path)):
        raise UserError(f"data.path={path} does not exist: give a text file, a folder of them or a glob")
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not found:
        raise UserError(f"data.path={path} matches no file: mend the glob; ** stands for folders at any depth")
    fixed = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
    return Path(*path.parts[:fixed]), found


def _sound(files: list[Path], tokenizer: Tokenizer, most: float) -> tuple[list[tuple[Path, int]], list[str]]:
    """Those files that can be used, each with its size, and what is to be said of the others."""
    skipped, sound, empty = Skipped(len(files), most), [], 0
    for file in tqdm(files, desc="files", disable=None):
        try:
            size = file.stat().st_size
            for chunk in _chunks(Piece(file, 0, size)):
                if tokenizer.name == "bytes":
                    break  # these may be anything; that it can be read at all is enough
                chunk.decode()
        except UnicodeDecodeError as error:
            skipped.add(file, f"not UTF-8 ({error.reason}), which any data.tokenizer but bytes needs")
        except OSError as error:
            skipped.add(file, str(error.strerror))
        else:
            empty += not size
            sound += [(file, size)] if size else []
    return sound, skipped.problems + ([f"{empty} of {len(files)} files are empty"] if empty else [])


def _split(root: Path, files: list[tuple[Path, int]], val_fraction: float) -> tuple[list[Piece], list[Piece]]:
    """By a hash of each file's relative name; where that leaves a split empty, at a place in the text."""
    splits: tuple[list[Piece], list[Piece]] = ([], [])
    for file, size in files:
        splits[is_held_out(file, root, val_fraction)].append(Piece(file, 0, size))
    return splits if all(splits) else _cut(files, val_fraction)


def _cut(files: list[tuple[Path, int]], val_fraction: float) -> tuple[list[Piece], list[Piece]]:
    """Hold out the end of the text, from the next whole character on."""
    train, val = [], []
    left = round(sum(size for _, size in files) * (1 - val_fraction))
    for file, size in files:
        place = min(left, size)
        left -= place
        if 0 < place < size:
            with file.open("rb") as stream:
                stream.seek(place)
                place += _continuing(stream.read(3))
        train += [Piece(file, 0, place)] if place else []
        val += [Piece(file, place, size)] if place < size else []
    return train, val


def _continuing(block: bytes) -> int:
    """How many of these bytes belong to a character of UTF-8 that began before them."""
    return len(block) - len(block.lstrip(bytes(range(0x80, 0xC0))))


def _chunks(piece: Piece) -> Iterator[bytes]:
    """Read a piece in parts of about `CHUNK` bytes, each up to the end of a line or, at worst, of a character."""
    with piece.file.open("rb") as stream:
        stream.seek(piece.begin)
        left, rest = piece.end - piece.begin, b""
        while block := stream.read(min(CHUNK, left)):
            left -= len(block)
            block = rest + block
            cut = (block.rfind(b"\n") + 1 or _whole(block)) if left else len(block)
            yield block[:cut]
            rest = block[cut:]
        if rest:
            yield rest


def _whole(block: bytes) -> int:
    """The length of a block without its last character of UTF-8, as that may be cut short."""
    begins = [len(block) - back for back in range(1, min(4, len(block)) + 1) if block[-back] & 0xC0 != 0x80]
    return max(begins, default=len(block))


def _write(folder: Path, splits: tuple[list[Piece], list[Piece]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Write the tokens of train and of val, as plain arrays."""
    about: dict[str, Any] = {"vocabulary": tokenizer.vocabulary}
    sizes = [sum(piece.end - piece.begin for piece in pieces) for pieces in splits]
    with tqdm(total=sum(sizes), desc="tokens", unit="B", unit_scale=True, disable=None) as bar:
        for name, pieces in zip(("train", "val"), splits, strict=True):
            about[name] = 0
            with (folder / name).open("wb") as target:
                for tokens, size in _in_order(tokenizer.encode, chain.from_iterable(map(_chunks, pieces))):
                    tokens.astype(_stored(tokenizer.vocabulary), copy=False).tofile(target)
                    about[name] += len(tokens)
                    bar.update(size)
    return {**about, "bytes_per_token": sizes[1] / max(about["val"], 1)}


def _in_order(encode: Callable[[bytes], NDArray[Any]], chunks: Iterable[bytes]) -> Iterator[tuple[NDArray[Any], int]]:
    """Encode chunks in threads, as tokenizers do not hold Python's lock; a few wait in memory and no more."""
    threads = os.cpu_count() or 1
    waiting: deque[tuple[Future[NDArray[Any]], int]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for chunk in chunks:
            waiting.append((pool.submit(encode, chunk), len(chunk)))
            if len(waiting) > 2 * threads:
                done, size = waiting.popleft()
                yield done.result(), size
        for done, size in waiting:
            yield done.result(), size


def _stored(vocabulary: int) -> type[np.integer[Any]]:
    return np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.int32


def _mapped(file: Path, vocabulary: int, count: int) -> Tensor:
    dtype = {np.uint8: torch.uint8, np.uint16: torch.int16, np.int32: torch.int32}[_stored(vocabulary)]
    if not count:
        return torch.empty(0, dtype=dtype)
    try:
        return torch.from_file(str(file), shared=False, size=count, dtype=dtype)
    except RuntimeError as error:
        raise UserError(f"the cache {file.parent} is broken ({file.name} is missing or short): remove it") from error
