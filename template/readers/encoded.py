"""Texts with labels, encoded once as token ids, which are stored in memory-mapped files."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .common import build_once
from .statements import KEYWORDS, load_statements
from .subwords import Encode, encoder, read_tokenizer, train_byte_pairs, vocabulary_of

CHUNK = 1000
"""Texts encoded at once."""


class TextsConfig(Protocol):
    """The fields of `DataConfig` that this reader uses."""

    @property
    def path(self) -> Path | None: ...

    @property
    def val_path(self) -> Path | None: ...

    @property
    def val_fraction(self) -> float: ...

    @property
    def text(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def tokenizer(self) -> str: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def lowercase(self) -> bool: ...

    @property
    def length(self) -> int: ...

    @property
    def max_unreadable(self) -> float: ...

    @property
    def cache_dir(self) -> Path: ...


@dataclass(frozen=True)
class Split:
    """The texts of a split, one after another."""

    tokens: Tensor
    """(tokens of all texts,), int32."""
    ends: Tensor
    """(texts,), int64: where each text ends in `tokens`."""
    labels: Tensor
    """(texts,), int64."""


@dataclass(frozen=True)
class Encoded:
    """Both splits, and what they have in common."""

    train: Split
    val: Split
    classes: tuple[str, ...]
    tokenizer: str
    """The content of its tokenizer.json."""
    vocabulary: int
    problems: tuple[str, ...]


def read(cfg: TextsConfig) -> Encoded:
    """Read and encode the texts, or load the cached result.

    Raises:
        UserError: a file, a column or the tokenizer is missing or unsuitable, or there are too few texts.
    """
    files = [file for file in (cfg.path, cfg.val_path) if file is not None]
    given = [] if cfg.tokenizer == "train" else [Path(cfg.tokenizer)]
    names = ("val_fraction", "text", "label", "tokenizer", "vocabulary", "lowercase", "length", "max_unreadable")
    settings: dict[str, Any] = {name: getattr(cfg, name) for name in names}
    settings |= {"files": [str(file.absolute()) for file in files], "version": 1}
    sources = [*files, *(path / "tokenizer.json" if path.is_dir() else path for path in given)]
    if cfg.path is None:
        sources.append(Path(os.__file__))  # another Python has another standard library
    if given:
        read_tokenizer(given[0])  # an error says what to give instead, before its file is looked at
    folder, manifest = build_once(cfg.cache_dir, "texts", settings, sources, partial(_build, cfg, files))
    train, val = (_split(folder, name, manifest[name]) for name in ("train", "val"))
    tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
    return Encoded(
        train, val, tuple(manifest["classes"]), tokenizer, manifest["vocabulary"], tuple(manifest["problems"])
    )


def _split(folder: Path, name: str, sizes: list[int]) -> Split:
    texts, tokens = sizes
    found = torch.from_file(str(folder / f"{name}.tokens"), shared=False, size=tokens, dtype=torch.int32)
    ends, labels = (torch.from_numpy(np.load(folder / f"{name}.{part}.npy")) for part in ("ends", "labels"))
    assert len(ends) == texts
    return Split(found, ends, labels)


def _build(cfg: TextsConfig, files: list[Path], folder: Path) -> dict[str, Any]:
    """Read, split and encode; write the arrays and the tokenizer, and return the content of the cache's manifest."""
    problems: list[str] = []
    if files:
        from .labeled import read_files  # imported here because importing polars takes a while

        train, val, classes = read_files(cfg, files, problems)
    else:
        (train, val), classes = load_statements(cfg.val_fraction), KEYWORDS
    if cfg.tokenizer == "train":
        tokenizer = train_byte_pairs(train[0], cfg.vocabulary, cfg.lowercase)
    else:
        tokenizer = read_tokenizer(Path(cfg.tokenizer))
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    encode = encoder(tokenizer, cfg.length)
    about: dict[str, Any] = {"classes": classes, "vocabulary": vocabulary_of(tokenizer), "problems": problems}
    for name, (texts, labels) in (("train", train), ("val", val)):
        lengths = []
        with (folder / f"{name}.tokens").open("wb") as target:
            for tokens in _encode_all(encode, texts):
                lengths.append(len(tokens))
                tokens.tofile(target)
        cut = sum(length == cfg.length for length in lengths)
        if cut > 0.05 * len(lengths):
            problems.append(f"{name}: {cut} of {len(texts)} texts have data.length={cfg.length} tokens or more")
        if not all(lengths):
            raise UserError(f"data.tokenizer={cfg.tokenizer} gives no token for some texts: give another, or `train`")
        np.save(folder / f"{name}.ends.npy", np.array(list(accumulate(lengths)), np.int64))
        np.save(folder / f"{name}.labels.npy", np.array(labels, np.int64))
        about[name] = [len(texts), sum(lengths)]
    return about


def _encode_all(encode: Encode, texts: list[str]) -> Iterator[Any]:
    """Encode in order, in threads, because tokenizers releases the GIL."""
    chunks = [texts[begin : begin + CHUNK] for begin in range(0, len(texts), CHUNK)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for found in pool.map(encode, chunks):
            yield from found
