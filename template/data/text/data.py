"""Text as tokens: the source code of Python's standard library, or your own files.

This file is yours to edit. Training needs `DataConfig`, `Spec`, `load` and `Prepare`; `describe`
and `load_test` are optional: see contracts.py.
"""

import codecs
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError
from .text_files import library, own_files
from .token_files import TokenFile, WindowsInFile, name_of, write_once

LARGE = 2**28
"""Bytes of text from which the tokens stay in a file."""
PART = 2**22
"""Bytes of a file that are tokenized at once."""

Batch = tuple[Tensor, ...]
Tokens = NDArray[Any]  # of uint8 or int32
Encode = Callable[[str], Tokens]


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text to load, how to tokenize it, and the context length."""

    path: Path | None = None
    """Text file, or folder whose files match `pattern`, perhaps with files or folders for `train`,
    `val` and `test`; null: the source code of Python's standard library."""
    pattern: str = "*"
    """Files to read from a folder, at any depth, such as `*.md`; hidden ones are left out."""
    encoding: str = "utf-8"
    """Encoding of your own files, such as latin-1 or utf-16. Tokens are made of the text, not of
    this encoding's bytes."""
    tokenizer: str = "bytes"
    """bytes: each byte of the text in UTF-8 is a token; or the path of a tokenizer.json of Hugging
    Face's tokenizers, of which the run keeps a copy."""
    context: int = within("[8, 1048576]", 128)
    """Context length, in tokens."""
    val_fraction: float = within("(0, 1)", 0.02)
    """Fraction of your own files for validation, or of the text, its end, if there are too few
    files. No effect on text that has `val`, and on the built-in text, which is split by module."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction for the test split, as for validation; with too few files, the end after that for
    validation. No effect on the built-in text."""
    tokens: Path = Path("data/tokens")
    """Folder for the tokens of 256 MB of text or more, from which training then reads them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.val_fraction + self.test_fraction >= 1:
            self.refuse("test_fraction", "with data.val_fraction, it leaves no text for training")


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    vocabulary: int  # number of token ids
    context: int  # number of input tokens
    bytes_per_token: float = 1.0  # to compare tokenizers by bits per byte
    tokenizer: str = ""  # content of its tokenizer.json; empty for bytes


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


Samples = Any
"""`Windows`, or `WindowsInFile`."""


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


def load(
    cfg: DataConfig,
    spec: Spec | None = None,
) -> tuple[Samples, Samples, Spec]:
    """Return the training set, the validation set and their `Spec`.

    With the `Spec` of a run, the text is tokenized as in that run.
    """
    files = _find_files(cfg)
    splits, spec = _read(files, cfg, spec)
    train_set = _windows("training", splits[0], cfg, spec)
    val_set = _windows("validation", splits[1], cfg, spec)
    train_set.files = len(files["train"])
    val_set.files = len(files["val"])
    return train_set, val_set, spec


def load_test(
    cfg: DataConfig,
    spec: Spec | None = None,
) -> Samples | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    splits, spec = _read(_find_files(cfg), cfg, spec)
    test = splits[2]
    return _windows("the test", test, cfg, spec) if len(test) else None


def describe(
    train_set: Samples,
    val_set: Samples,
    spec: Spec,
) -> list[str]:
    """Return what was read, and how it was understood."""
    counts = []
    for split in (train_set, val_set):
        of_files = f" of {split.files:,} files" if split.files > 1 else ""
        counts.append(f"{len(split) * spec.context:,} tokens{of_files}")
    kind = f"of {spec.bytes_per_token:.1f} bytes on average" if spec.tokenizer else "bytes"
    lines = [
        f"{counts[0]} for training and {counts[1]} for validation, in windows of {spec.context}; "
        f"a vocabulary of {spec.vocabulary:,} tokens ({kind})"
    ]
    if spec.tokenizer:
        some = list(range(0, len(train_set), 1 + len(train_set) // 1000))
        (tokens,) = train_set.__getitems__(some)
        unknown = (tokens[:, 1:] == _unknown_token(spec.tokenizer)).double().mean()
        if unknown > 0:
            lines.append(f"{unknown:.2%} of the training tokens are unknown to the tokenizer")
    return lines


def _unknown_token(tokenizer: str) -> int:
    """Return the id that a tokenizer gives to what its vocabulary lacks; -1 if it has none."""
    model = json.loads(tokenizer)["model"]
    if "unk_id" in model:  # of Unigram
        return -1 if model["unk_id"] is None else int(model["unk_id"])
    return int(model["vocab"].get(model.get("unk_token"), -1))


def _windows(
    split: str,
    tokens: Tokens | TokenFile,
    cfg: DataConfig,
    spec: Spec,
) -> Samples:
    if len(tokens) <= spec.context:
        raise UserError(
            f"the text for {split} has {len(tokens)} tokens, "
            f"but data.context={spec.context} needs more: "
            f"add text to data.path={cfg.path}, lower data.context, or change data.val_fraction"
        )
    if isinstance(tokens, TokenFile):
        return WindowsInFile(tokens, spec.context)
    return Windows(torch.from_numpy(tokens), spec.context)


def _find_files(cfg: DataConfig) -> dict[str, list[Path]]:
    """Return the files for training, for validation and for the test."""
    return library() if cfg.path is None else _own_files(cfg, cfg.path)


def _read(
    files: dict[str, list[Path]],
    cfg: DataConfig,
    spec: Spec | None,
) -> tuple[list[Tokens] | list[TokenFile], Spec]:
    """Return the tokens for training, for validation and for the test, and the `Spec`."""
    tokenizer = spec.tokenizer if spec else _read_tokenizer(cfg.tokenizer)
    encode, vocabulary = _encoder(tokenizer)
    bytes_of_files = [file.stat().st_size for file in chain.from_iterable(files.values())]
    is_large = sum(bytes_of_files) >= LARGE
    splits: list[Any] = []
    sizes = []
    tokens: Any
    for part in files.values():
        encoded = _encode_files(part, cfg, encode)
        if is_large and part:
            name = name_of(part, cfg.encoding, tokenizer)
            dtype = torch.int32 if tokenizer else torch.uint8
            tokens, size = write_once(cfg.tokens, name, encoded, dtype)
        else:
            tokens, size = _join(encoded)
        splits.append(tokens)
        sizes.append(size)
    measured = 1 if files["val"] else 0
    if spec is None:
        spec = Spec(
            vocabulary=vocabulary,
            context=cfg.context,
            bytes_per_token=sizes[measured] / max(len(splits[measured]), 1),
            tokenizer=tokenizer,
        )
    if not files["val"]:
        splits = _split(splits[0], splits[2], cfg)
    return splits, spec


def _split(
    tokens: Any,
    test: Any,
    cfg: DataConfig,
) -> list[Any]:
    """Return the beginning for training, then the part for validation, and the test split.

    If there is no test split yet, it is the end.
    """
    test_fraction = 0.0 if len(test) else cfg.test_fraction
    test_begin = round(len(tokens) * (1 - test_fraction))
    val_begin = round(len(tokens) * (1 - test_fraction - cfg.val_fraction))
    return [
        tokens[:val_begin],
        tokens[val_begin:test_begin],
        test if len(test) else tokens[test_begin:],
    ]


def _join(encoded: Iterator[tuple[Tokens, int]]) -> tuple[Tokens, int]:
    """Return all tokens, and how many bytes their text has in UTF-8."""
    parts = [np.empty(0, np.uint8)]
    size = 0
    for tokens, bytes_of_text in encoded:
        parts.append(tokens)
        size += bytes_of_text
    return np.concatenate(parts), size


def _encode_files(
    files: list[Path],
    cfg: DataConfig,
    encode: Encode,
) -> Iterator[tuple[Tokens, int]]:
    """Yield the tokens of each part of the files, and how many bytes its text has in UTF-8."""
    encoding = "utf-8" if cfg.path is None else cfg.encoding
    for file in files:
        for text in _read_text(file, encoding):
            yield encode(text), len(text.encode())


def _own_files(
    cfg: DataConfig,
    path: Path,
) -> dict[str, list[Path]]:
    """Return your files for training, for validation and for the test.

    Unless names of files or folders say it, a hash of its relative name decides for each. If there
    are too few for that, all are for training.
    """
    if not cfg.pattern or Path(cfg.pattern).is_absolute():
        cfg.refuse("pattern", "give a pattern of file names, such as *.md")
    given = own_files(path, cfg.pattern)
    if given["val"] or path.is_file():
        return given
    train = []
    val = []
    test = given["test"].copy()
    test_fraction = 0.0 if test else cfg.test_fraction
    for file in given["train"]:
        place = _place(file.relative_to(path).as_posix())
        if place < cfg.val_fraction:
            val.append(file)
        elif place < cfg.val_fraction + test_fraction:
            test.append(file)
        else:
            train.append(file)
    if not train or not val or (test_fraction and not test):
        return given
    return {"train": train, "val": val, "test": test}


def _place(name: str) -> float:
    """Return a hash from 0 to 1, which is the same on every machine."""
    digest = hashlib.sha256(name.encode(errors="surrogateescape"))
    return int(digest.hexdigest()[:12], 16) / 2**48


def _read_text(file: Path, encoding: str) -> Iterator[str]:
    r"""Yield the text of a file without a byte-order mark, in parts of lines; these end with \n."""
    try:
        "a".encode(encoding)  # refuses what is no encoding of text, such as hex
        decoder = codecs.getincrementaldecoder(encoding)()
    except LookupError:
        raise UserError(
            f"data.encoding={encoding} is none of Python's: give utf-8, latin-1 or utf-16"
        ) from None
    begin = 0
    rest = ""
    is_last = False
    with file.open("rb") as stream:
        while not is_last:
            content = stream.read(PART)
            is_last = len(content) < PART
            before = begin - len(decoder.getstate()[0])  # where the bytes to decode begin
            try:
                text = rest + decoder.decode(content, is_last)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{file} is not {encoding} at byte {before + error.start}: "
                    "set data.encoding, or leave the file out with data.pattern"
                ) from None
            if "\0" in text:
                raise UserError(
                    f"{file} is binary: set data.encoding, or leave the file out with data.pattern"
                )
            if begin == 0:
                text = text.removeprefix("\ufeff")
            begin += len(content)
            end = len(text) if is_last else text.rfind("\n") + 1 or len(text) - 1
            rest = text[end:]
            yield text[:end].replace("\r\n", "\n")


def _read_tokenizer(name: str) -> str:
    """Return the content of a tokenizer.json, "" for bytes."""
    if name == "bytes":
        return ""
    from tokenizers import Tokenizer  # only those who use it need this package

    file = Path(name).expanduser()
    if not file.is_file():
        raise UserError(f"data.tokenizer={name} is no file: give bytes, or a tokenizer.json")
    try:
        content: str = Tokenizer.from_file(str(file)).to_str()
    except Exception as error:  # the package raises no subclass
        raise UserError(f"data.tokenizer={name} is no tokenizer.json: {error}") from None
    return content


def _encoder(tokenizer: str) -> tuple[Encode, int]:
    """Return the function that encodes a text, and the number of token ids."""
    if not tokenizer:
        return _encode_bytes, 256
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_str(tokenizer)
    loaded.no_truncation()
    loaded.no_padding()

    def encode(text: str) -> Tokens:
        try:
            encoded = loaded.encode(text, add_special_tokens=False)
        except Exception as error:  # such as a word that a vocabulary of words lacks
            raise UserError(f"data.tokenizer cannot encode the text: {error}") from None
        return np.array(encoded.ids, np.int32)

    return encode, max(loaded.get_vocab().values(), default=-1) + 1


def _encode_bytes(text: str) -> Tokens:
    return np.frombuffer(text.encode(), np.uint8)
