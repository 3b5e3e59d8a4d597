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

VALIDATION = """__future__ __hello__ __phello__ _markupbase _py_warnings antigravity cgitb cmd
contextvars dis ensurepip json modulefinder operator secrets shlex sqlite3 struct this token tty
warnings"""
"""Modules of the standard library for validation, 2% of its bytes.

They share no code with others; if files were chosen at random, a fifth of their text would also be
in the training text."""
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}

Batch = tuple[Tensor, ...]
Tokens = NDArray[Any]  # of uint8 or int32
Encode = Callable[[bytes], Tokens]


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text to load, how to tokenize it, and the context length."""

    path: Path | None = None
    """Text file, or folder whose files match `pattern`; null: the source code of Python's standard
    library."""
    pattern: str = "*"
    """Files to read from a folder, at any depth, such as `*.md`."""
    tokenizer: str = "bytes"
    """bytes: each byte is a token; or the path of a tokenizer.json of Hugging Face's tokenizers."""
    context: int = within("[8, 1048576]", 128)
    """Context length, in tokens."""
    val_fraction: float = within("(0, 1)", 0.02)
    """Fraction of your own files for validation, or of the text, its end, if there are too few
    files. No effect on the built-in text, which is split by module."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction for the test split, as for validation; with too few files, the end after that for
    validation. No effect on the built-in text."""


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    vocabulary: int  # number of token ids
    context: int  # number of input tokens
    bytes_per_token: float = 1.0  # of the validation text, to compare tokenizers by bits per byte


class Windows(TensorDataset):
    """Windows of `context` tokens and the next one.

    A batch is one tensor (n, context + 1), uint8 or int32.
    """

    in_memory = True

    def __init__(self, tokens: Tensor, context: int) -> None:
        windows = tokens.unfold(0, context + 1, context)  # a view: a batch copies whole rows
        super().__init__(windows)

    def __getitems__(self, indices: list[int]) -> Batch:
        windows = self.tensors[0]
        chosen = torch.as_tensor(indices)
        return (windows.index_select(0, chosen),)


class Prepare(nn.Module):
    """Prepares a batch on the device; text is not augmented."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(
        self,
        batch: Batch,
        training: bool,
        generator: torch.Generator,
    ) -> Batch:
        """Return the tokens and, as targets, the next ones: both (n, context), int64."""
        tokens = batch[0]
        inputs = tokens[:, :-1].long()
        targets = tokens[:, 1:].long()
        return inputs, targets


def load(cfg: DataConfig) -> tuple[Windows, Windows, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    (train, val, _), spec = _read(cfg)
    train_set = _windows("training", train, cfg)
    val_set = _windows("validation", val, cfg)
    return train_set, val_set, spec


def load_test(cfg: DataConfig) -> Windows | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    (_, _, test), _ = _read(cfg)
    return _windows("the test", test, cfg) if len(test) else None


def _windows(
    split: str,
    tokens: Tokens,
    cfg: DataConfig,
) -> Windows:
    if len(tokens) <= cfg.context:
        raise UserError(
            f"the text for {split} has {len(tokens)} tokens, "
            f"but data.context={cfg.context} needs more: "
            "add text to data.path, or change data.val_fraction"
        )
    return Windows(torch.from_numpy(tokens), cfg.context)


def _read(cfg: DataConfig) -> tuple[list[Tokens], Spec]:
    """Return the tokens for training, for validation and for the test, and the `Spec`."""
    files = library() if cfg.path is None else _own_files(cfg, cfg.path)
    encode, vocabulary = _tokenizer(cfg.tokenizer)
    train, val, test = (_tokens(part, encode) for part in files)
    has_val = len(val) > 0
    size = sum(file.stat().st_size for file in files[1 if has_val else 0])
    spec = Spec(
        vocabulary=vocabulary,
        context=cfg.context,
        bytes_per_token=size / len(val if has_val else train),
    )
    if has_val:
        return [train, val, test], spec
    test_begin = round(len(train) * (1 - cfg.test_fraction))
    val_begin = round(len(train) * (1 - cfg.test_fraction - cfg.val_fraction))
    return np.split(train, [val_begin, test_begin]), spec


def _tokens(
    files: list[Path],
    encode: Encode,
) -> Tokens:
    parts = [np.empty(0, np.uint8)]
    for file in files:
        parts.append(encode(file.read_bytes()))
    return np.concatenate(parts)


def library() -> list[list[Path]]:
    """Return the modules of the standard library: for training, for validation, and no others."""
    train: list[Path] = []
    val: list[Path] = []
    root = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(root.rglob("*.py")):
        names = file.relative_to(root).parts
        if EXCLUDED.intersection(names):
            continue
        module = names[0].removesuffix(".py")
        split = val if module in VALIDATION.split() else train
        split.append(file)
    return [train, val, []]


def _own_files(
    cfg: DataConfig,
    path: Path,
) -> list[list[Path]]:
    """Return your files for training, for validation and for the test, without hidden ones.

    A hash of its relative name decides for each. If there are too few, all are for training.
    """
    if path.is_file():
        return [[path], [], []]
    train = []
    val = []
    test = []
    files = [file for file in sorted(path.rglob(cfg.pattern)) if _is_visible(file, path)]
    if not files:
        raise UserError(
            f"data.path={path} is neither a file nor a folder with files that match {cfg.pattern}"
        )
    for file in files:
        name = file.relative_to(path).as_posix()
        digest = hashlib.sha256(name.encode()).hexdigest()
        place = int(digest[:8], 16) / 2**32
        if place < cfg.val_fraction:
            val.append(file)
        elif place < cfg.val_fraction + cfg.test_fraction:
            test.append(file)
        else:
            train.append(file)
    if not train or not val or (cfg.test_fraction and not test):
        return [files, [], []]
    return [train, val, test]


def _is_visible(file: Path, folder: Path) -> bool:
    names = file.relative_to(folder).parts
    return file.is_file() and not any(name.startswith(".") for name in names)


def _tokenizer(name: str) -> tuple[Encode, int]:
    """Return the function that encodes a text, and the number of token ids."""
    if name == "bytes":
        return _encode_bytes, 256
    from tokenizers import Tokenizer  # only those who use it need this package

    if not Path(name).is_file():
        raise UserError(f"data.tokenizer={name} does not exist: give bytes, or a tokenizer.json")
    tokenizer = Tokenizer.from_file(name)
    tokenizer.no_truncation()

    def encode(content: bytes) -> Tokens:
        text = content.decode(errors="replace")
        encoded = tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoded.ids, np.int32)

    return encode, max(tokenizer.get_vocab().values()) + 1


def _encode_bytes(content: bytes) -> Tokens:
    return np.frombuffer(content, np.uint8)
