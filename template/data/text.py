"""Text as bytes: the Python standard library's own source, or your own files.

Yours to change. The rest of the project needs `DataConfig`, `load` and `Prepare`, as they stand here.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from .errors import UserError
from .ranges import Section, within

Batch = tuple[Tensor, ...]
"""As loaded: tokens (n, context + 1), uint8. As prepared: inputs and targets, each (n, context), int64."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text, and in pieces of what length."""

    path: Path | None = None
    """A text file, or a folder whose files (by `pattern`) are read; null: the source of Python's standard library."""
    pattern: str = "*"
    """Which files of a folder count, at any depth: `*.md`, say."""
    context: int = within("[8, 1048576]", 128)
    """Tokens (here bytes) that the model sees at once."""
    val_fraction: float = within("(0, 1)", 0.02)
    """Share of the files that is held out; of the text, where there is but one file."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in the device's memory, and gather each batch there; for small data sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern or Path(self.pattern).is_absolute():
            self.refuse("pattern", "it must be a relative glob, such as *.txt")


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` must know of the data."""

    vocabulary: int
    """Number of tokens; 256 bytes are a multiple of 64 already, which matrix units like."""
    context: int


class Windows:
    """A text cut into pieces of `context` tokens, each with the token that follows it."""

    def __init__(self, tokens: Tensor, context: int) -> None:
        self.tokens, self.context = tokens, context
        self.span = torch.arange(context + 1)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitems__(self, indices: list[int]) -> Batch:
        places = torch.as_tensor(indices).unsqueeze(1) * self.context + self.span
        return (self.tokens.index_select(0, places.flatten()).view(places.shape),)


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Windows
    val: Windows
    spec: Spec
    in_memory: bool
    """Whether a batch costs so little that a loader process would only add to it."""


def load(cfg: DataConfig) -> Data:
    """Read the text; a file's place in train or val depends on nothing but its relative path.

    Raises:
        UserError: there is no such file or folder, it cannot be read, or it holds too little text.
    """
    root = cfg.path or Path(sysconfig.get_paths()["stdlib"])
    if not root.exists():
        raise UserError(f"data.path={root} does not exist: give a text file, or a folder of them")
    files = [root] if root.is_file() else _standard_library(root) if cfg.path is None else _files(root, cfg.pattern)
    if not files:
        raise UserError(f"data.path={root} has no file that matches data.pattern={cfg.pattern}")
    train, val = _split(root, files, cfg.val_fraction)
    for name, text in (("train", train), ("val", val)):
        if len(text) <= cfg.context:
            raise UserError(f"the {name} split has {len(text)} bytes: more than data.context={cfg.context} are needed")
    splits = [Windows(torch.from_numpy(np.frombuffer(text, np.uint8)), cfg.context) for text in (train, val)]
    return Data(splits[0], splits[1], Spec(256, cfg.context), in_memory=True)


def _files(root: Path, pattern: str) -> list[Path]:
    hidden = (file for file in root.rglob(pattern) if file.is_file())
    return sorted(file for file in hidden if not any(part.startswith(".") for part in file.relative_to(root).parts))


def _standard_library(root: Path) -> list[Path]:
    aside = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    return [file for file in _files(root, "*.py") if not aside.intersection(file.relative_to(root).parts)]


def _split(root: Path, files: list[Path], val_fraction: float) -> tuple[bytearray, bytearray]:
    train, val = bytearray(), bytearray()
    for file in files:
        digest = hashlib.sha256(file.relative_to(root).as_posix().encode(errors="surrogateescape")).digest()
        held_out = int.from_bytes(digest[:4], "big") < val_fraction * 2**32
        try:
            (val if held_out else train).extend(file.read_bytes())
        except OSError as error:
            raise UserError(f"cannot read {file} ({error.strerror}): mend its permissions or remove it") from error
    if train and val:
        return train, val
    text = train or val
    cut = round(len(text) * (1 - val_fraction))
    return text[:cut], text[cut:]


class Prepare(nn.Module):
    """What happens to a batch on the device: bytes become indices; the targets are the inputs moved by one."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Take a batch as loaded, give it as the model wants it; text gets no noise."""
        tokens = batch[0].long()
        return tokens[:, :-1], tokens[:, 1:]
