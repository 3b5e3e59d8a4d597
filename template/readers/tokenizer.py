"""Tokenizers: plain bytes, a tokenizer.json of Hugging Face tokenizers, or an encoding of tiktoken."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError


@dataclass(frozen=True)
class Tokenizer:
    """Encodes UTF-8 bytes as token ids, all below `vocabulary`, and decodes them to text."""

    name: str
    vocabulary: int
    encode: Callable[[bytes], NDArray[Any]]
    decode: Callable[[Sequence[int]], str]


def open_tokenizer(name: str) -> Tokenizer:
    """Open `bytes`, a tokenizer.json file, or an encoding that tiktoken knows.

    Raises:
        UserError: there is no such tokenizer, or its package or vocabulary is not available.
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
    # Encoding already runs in our threads; the package's own threads would warn in every forked worker process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    if not Path(name).is_file():
        raise UserError(f"data.tokenizer={name} does not exist: give a tokenizer.json, bytes, or a tiktoken encoding")
    try:
        file = tokenizers.Tokenizer.from_file(name)
    except Exception as error:  # the package raises nothing more specific
        raise UserError(
            f"data.tokenizer={name} is not a tokenizer.json of tokenizers ({error}): give another"
        ) from error
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
    except (OSError, ValueError) as error:  # no network, or a corrupt file
        raise UserError(
            f"the vocabulary of data.tokenizer={name} cannot be downloaded ({type(error).__name__}): connect this "
            "machine once, or copy the folder TIKTOKEN_CACHE_DIR from another machine"
        ) from error
    return Tokenizer(
        name,
        encoding.n_vocab,
        lambda text: encoding.encode_to_numpy(text.decode(), disallowed_special=()),
        lambda tokens: encoding.decode(list(tokens)),
    )
