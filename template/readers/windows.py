"""Tokens in memory, cut into windows; and the source of Python's standard library as bytes."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from .library import library_files, library_validation, name_digest


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


def in_validation(file: Path, root: Path, val_fraction: float) -> bool:
    """Whether a file of your own belongs to val: by a hash of its relative name, so the same on every machine."""
    return int.from_bytes(name_digest(file.relative_to(root).as_posix())[:4], "big") < val_fraction * 2**32
