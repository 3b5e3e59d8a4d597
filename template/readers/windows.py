"""Tokens in memory, cut into windows; and the source of Python's standard library as a built-in data set."""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError

FAMILIES = (
    "abc collections collections_abc functools py_abc typing weakref weakrefset",
    "aifc chunk imghdr sndhdr sunau wave",
    "asynchat asyncio asyncore concurrent multiprocessing queue smtpd socket socketserver subprocess threading",
    "bz2 compression gzip lzma tarfile zipfile",
    "cgi email http urllib wsgiref",
    "cProfile profile pstats",
    "datetime pydatetime strptime",
    "decimal pydecimal",
    "distutils osx_support shutil site sysconfig",
    "ftplib imaplib nntplib poplib smtplib telnetlib",
    "genericpath ntpath nturl2path os posixpath",
    "inspect pydoc xml xmlrpc",
    "io pyio",
    "re sre_compile sre_constants sre_parse",
)
"""Top-level modules of the standard library that share code or docstrings; any other is a family of its own."""


class Windows:
    """Dataset of windows of `context` tokens and the next one; they begin every `stride` (default `context`) tokens."""

    def __init__(self, tokens: Tensor, context: int, stride: int | None = None) -> None:
        self.tokens = tokens
        self.windows = tokens.unfold(0, context + 1, stride or context)  # a view, so that a batch copies whole rows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return (self.windows.index_select(0, torch.as_tensor(indices)),)


def as_indices(tokens: Tensor) -> Tensor:
    """Tokens as loaded, to int64. torch cannot index uint16, so these are stored as int16 with wraparound."""
    return tokens.long() & 0xFFFF if tokens.dtype == torch.int16 else tokens.long()


@dataclass(frozen=True)
class Text:
    """The tokens of both splits, and what they have in common."""

    train: Tensor
    val: Tensor
    vocabulary: int = 256
    bytes_per_token: float = 1.0
    """Of the validation text."""
    in_memory: bool = True
    problems: tuple[str, ...] = ()

    def windows(self, context: int) -> tuple[Windows, Windows]:
        """Cut both splits into windows.

        Raises:
            UserError: a split is too short.
        """
        for name, tokens in (("train", self.train), ("val", self.val)):
            if len(tokens) <= context:
                raise UserError(
                    f"the {name} split has {len(tokens)} tokens: more than data.context={context} are needed; add "
                    "text, or change data.val_fraction"
                )
        return Windows(self.train, context), Windows(self.val, context)


def standard_library(val_fraction: float) -> Text:
    """The source code of Python's standard library, as bytes.

    Raises:
        UserError: a file cannot be read.
    """
    root, files = library_files()
    in_val = library_validation(root, files, val_fraction)
    splits = bytearray(), bytearray()
    for file in files:
        try:
            splits[file in in_val].extend(file.read_bytes())
        except OSError as error:
            raise UserError(f"cannot read {file} ({error.strerror}): set data.path to another text") from error
    if not all(splits):  # the fraction is too small for a whole family
        text = splits[0] or splits[1]
        cut = round(len(text) * (1 - val_fraction))
        splits = text[:cut], text[cut:]
    train, val = (torch.frombuffer(part or bytearray(1), dtype=torch.uint8)[: len(part)] for part in splits)
    return Text(train, val)


def library_files() -> tuple[Path, list[Path]]:
    """The folder of the standard library, and its modules without their tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    excluded = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    return root, sorted(file for file in root.rglob("*.py") if not excluded.intersection(file.relative_to(root).parts))


def library_validation(root: Path, files: list[Path], val_fraction: float) -> set[Path]:
    """The files of the standard library for validation: whole families, in the order of a hash of their names.

    Split by file, a fifth of the validation text would also be in the training text: the modules of `encodings`, for
    example, are nearly copies. A family larger than a quarter of the split is for training, so that it is varied.
    """
    first = {name: names.split()[0] for names in FAMILIES for name in names.split()}
    families: dict[str, list[Path]] = {}
    for file in files:
        name = file.relative_to(root).parts[0].removesuffix(".py").lstrip("_")
        families.setdefault(first.get(name, name), []).append(file)
    sizes = {family: sum(file.stat().st_size for file in members) for family, members in families.items()}
    left = val_fraction * sum(sizes.values())
    largest, chosen = left / 4, set[Path]()
    for family in sorted(families, key=_digest):
        if sizes[family] <= min(left, largest):
            left -= sizes[family]
            chosen.update(families[family])
    return chosen


def in_validation(file: Path, root: Path, val_fraction: float) -> bool:
    """Whether a file of your own belongs to val: by a hash of its relative name, so the same on every machine."""
    return int.from_bytes(_digest(file.relative_to(root).as_posix())[:4], "big") < val_fraction * 2**32


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()
