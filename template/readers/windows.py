"""Text as tokens in memory: windows of them, and the standard library's own source as bytes."""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError


class Windows:
    """Tokens cut into pieces of `context`, each with the token that follows it."""

    def __init__(self, tokens: Tensor, context: int) -> None:
        self.tokens = tokens
        self.windows = tokens.unfold(0, context + 1, context)  # a view: a batch copies whole rows, and not tokens

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return (self.windows.index_select(0, torch.as_tensor(indices)),)


def as_indices(tokens: Tensor) -> Tensor:
    """Tokens as loaded, to int64. torch cannot index uint16, so it gets int16, where the large ones are negative."""
    return tokens.long() & 0xFFFF if tokens.dtype == torch.int16 else tokens.long()


@dataclass(frozen=True)
class Text:
    """Both splits as tokens, and what they have in common."""

    train: Tensor
    val: Tensor
    vocabulary: int = 256
    bytes_per_token: float = 1.0
    """Of the held-out text."""
    in_memory: bool = True
    problems: tuple[str, ...] = ()

    def windows(self, context: int) -> tuple[Windows, Windows]:
        """Cut both splits.

        Raises:
            UserError: one is too short.
        """
        for name, tokens in (("train", self.train), ("val", self.val)):
            if len(tokens) <= context:
                raise UserError(
                    f"the {name} split has {len(tokens)} tokens: more than data.context={context} are needed; give "
                    "more text, or change data.val_fraction"
                )
        return Windows(self.train, context), Windows(self.val, context)


def standard_library(val_fraction: float) -> Text:
    """The source of Python's standard library, as bytes.

    Raises:
        UserError: it cannot be read.
    """
    root, files = library_files()
    splits = bytearray(), bytearray()
    for file in files:
        try:
            splits[is_held_out(file, root, val_fraction)].extend(file.read_bytes())
        except OSError as error:
            raise UserError(f"cannot read {file} ({error.strerror}): give another text, data.path") from error
    if not all(splits):  # so small a share that it is of no whole file
        text = splits[0] or splits[1]
        cut = round(len(text) * (1 - val_fraction))
        splits = text[:cut], text[cut:]
    train, val = (torch.frombuffer(part or bytearray(1), dtype=torch.uint8)[: len(part)] for part in splits)
    return Text(train, val)


def library_files() -> tuple[Path, list[Path]]:
    """The standard library's folder, and its modules without their tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    aside = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    return root, sorted(file for file in root.rglob("*.py") if not aside.intersection(file.relative_to(root).parts))


def is_held_out(file: Path, root: Path, val_fraction: float) -> bool:
    """Whether a file is in val: by a hash of its name relative to the root, so on every machine the same."""
    digest = hashlib.sha256(file.relative_to(root).as_posix().encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:4], "big") < val_fraction * 2**32
