"""Text as tokens: the source code of Python's standard library, or your own files.

This file is yours to edit.
"""

import hashlib
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError

VALIDATION = """__future__ __hello__ __phello__ _markupbase _py_warnings antigravity cgitb cmd contextvars dis ensurepip
json modulefinder operator secrets shlex sqlite3 struct this token tty warnings"""
"""Modules of the standard library for validation, 2% of its bytes.

They share no code with others; if files were chosen
at random, a fifth of their text would also be in the training text."""
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text to load, how to tokenize it, and the context length."""

    path: Path | None = None
    """Text file, or folder whose files match `pattern`; null: the source code of Python's standard library."""
    pattern: str = "*"
    """Files to read from a folder, at any depth, such as `*.md`."""
    tokenizer: str = "bytes"
    """bytes: each byte is a token; or the path of a tokenizer.json of Hugging Face's tokenizers."""
    context: int = within("[8, 1048576]", 128)
    """Context length, in tokens."""
    val_fraction: float = within("(0, 1)", 0.02)
    """Fraction of your own files for validation, or of the text, its end, if there are too few files. No effect on the
    built-in text, which is split by module."""


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    vocabulary: int  # number of token ids
    context: int  # number of input tokens
    bytes_per_token: float = (
        1.0  # of the validation text; makes bits per byte comparable between tokenizers
    )


class Windows(TensorDataset):
    """Windows of `context` tokens and the next one; a batch is one tensor (n, context + 1), uint8 or int32."""

    in_memory = True

    def __init__(self, tokens: Tensor, context: int) -> None:
        # a view, so that a batch copies whole rows
        super().__init__(tokens.unfold(0, context + 1, context))

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return (self.tensors[0].index_select(0, torch.as_tensor(indices)),)


def load(cfg: DataConfig) -> tuple[Windows, Windows, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    files = _library() if cfg.path is None else _own_files(cfg, cfg.path)
    encode, vocabulary = _tokenizer(cfg.tokenizer)
    tokens = {file: encode(file.read_bytes()) for file in files}
    train, val = (
        [tokens[file] for file in files if files[file] == in_val] for in_val in (False, True)
    )
    if train and val:
        parts = [np.concatenate(train), np.concatenate(val)]
    else:  # too few files: the end of the text is for validation
        text = np.concatenate(train + val)
        parts = np.split(text, [round(len(text) * (1 - cfg.val_fraction))])
    for name, part in zip(("training", "validation"), parts, strict=True):
        if len(part) <= cfg.context:
            raise UserError(
                f"the text for {name} has {len(part)} tokens, but data.context={cfg.context} needs more: "
                "add text to data.path, or change data.val_fraction"
            )
    measured = [file for file in files if files[file]] or list(files)
    size = sum(file.stat().st_size for file in measured)
    spec = Spec(vocabulary, cfg.context, size / sum(len(tokens[file]) for file in measured))
    train_set, val_set = (Windows(torch.from_numpy(part), cfg.context) for part in parts)
    return train_set, val_set, spec


class Prepare(nn.Module):
    """Prepares a batch on the device: tokens become indices, and targets are the inputs shifted by one."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(
        self, batch: tuple[Tensor, ...], training: bool, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Turn a batch as loaded into inputs and targets (n, context), int64; text is not augmented."""
        return batch[0][:, :-1].long(), batch[0][:, 1:].long()


def _library() -> dict[Path, bool]:
    """Return the modules of the standard library, and whether each is for validation."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names = {file: file.relative_to(root).parts for file in sorted(root.rglob("*.py"))}
    kept = {file: parts for file, parts in names.items() if not EXCLUDED.intersection(parts)}
    return {
        file: parts[0].removesuffix(".py") in VALIDATION.split() for file, parts in kept.items()
    }


def _own_files(cfg: DataConfig, path: Path) -> dict[Path, bool]:
    """Return your own files without hidden ones, and whether each is for validation, by a hash of its relative name."""
    if path.is_file():
        return {path: False}
    names = {
        file: file.relative_to(path).as_posix()
        for file in sorted(path.rglob(cfg.pattern))
        if file.is_file()
    }
    hashes = {
        file: hashlib.sha256(name.encode())
        for file, name in names.items()
        if "/." not in f"/{name}"
    }
    if not hashes:
        raise UserError(
            f"data.path={path} is neither a file nor a folder with files that match {cfg.pattern}"
        )
    return {
        file: int(found.hexdigest()[:8], 16) < cfg.val_fraction * 2**32
        for file, found in hashes.items()
    }


def _tokenizer(name: str) -> tuple[Callable[[bytes], NDArray[Any]], int]:
    """Return the function that encodes a text, and the number of token ids."""
    if name == "bytes":
        return lambda text: np.frombuffer(text, np.uint8), 256
    from tokenizers import Tokenizer

    if not Path(name).is_file():
        raise UserError(f"data.tokenizer={name} does not exist: give bytes, or a tokenizer.json")
    found = Tokenizer.from_file(name)
    found.no_truncation()

    def encode(text: bytes) -> NDArray[Any]:
        return np.array(
            found.encode(text.decode(errors="replace"), add_special_tokens=False).ids, np.int32
        )

    return encode, max(found.get_vocab().values()) + 1
