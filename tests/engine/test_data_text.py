"""Text: how much of the built-in validation text is also in the training text; binary and badly encoded files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers


def repeated(train: Any, val: Any) -> float:
    """Return the fraction of val's bytes in a string of 64 bytes which train has too, by a hash of each string."""
    hashes = []
    for text in (train, val):
        hashed, factor = (
            text.numpy().astype(np.uint64) + np.uint64(1),
            np.array([0x9E3779B97F4A7C15], np.uint64),
        )
        for length in (1, 2, 4, 8, 16, 32):
            hashed, factor = hashed[:-length] * factor + hashed[length:], factor * factor
        hashes.append(hashed)
    candidate = np.zeros(2**24, bool)
    candidate[hashes[1] >> 40] = True
    starts = np.isin(hashes[1], hashes[0][candidate[hashes[0] >> 40]])
    return float(np.convolve(starts, np.ones(64))[: len(val)].astype(bool).mean())


def test_validation_text_of_the_standard_library_is_new(package: Callable[[str], Any]) -> None:
    """22% of its bytes were in strings of 64 bytes that train has too when the library was split by file."""
    data = package("gpt").data
    train, val, _ = data.load(data.DataConfig())
    texts = [part.tensors[0][:, :-1].flatten() for part in (train, val)]
    assert 0.005 < repeated(*texts) < 0.04


def test_the_split_depends_only_on_relative_names(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    data = package("gpt").data
    lengths = []
    for name in ("a", "b"):
        for number in range(30):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number}.txt").write_bytes(bytes(20 + number))
        train, val, _ = data.load(
            data.DataConfig(path=tmp_path / name, context=8, val_fraction=0.3)
        )
        lengths.append((len(train), len(val)))
    assert lengths[0] == lengths[1]


def test_a_tokenizer_reads_bytes_that_are_not_utf_8(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    data = package("gpt").data
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    pairs.train_from_iterator(["größer"], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet))
    pairs.save(str(tmp_path / "pairs.json"))
    (tmp_path / "a.txt").write_bytes("größer \n".encode() * 50 + b"\xff" * 100)
    cfg = data.DataConfig(
        path=tmp_path / "a.txt", tokenizer=str(tmp_path / "pairs.json"), context=8
    )
    train, _, _ = data.load(data.DataConfig(**{**vars(cfg), "val_fraction": 0.3}))
    assert "größer" in pairs.decode(train.tensors[0][:, :-1].flatten().tolist())


def test_what_is_missing_is_named(package: Callable[[str], Any], tmp_path: Path) -> None:
    p = package("gpt")

    def expect(message: str, **keys: Any) -> None:
        with pytest.raises(p.errors.UserError, match=message):
            p.data.load(p.data.DataConfig(**keys))

    (tmp_path / "a.txt").write_text("short")
    expect(
        r"data.path=.*nowhere is neither a file nor a folder",
        path=tmp_path / "nowhere",
    )
    expect(r"files that match \*.md", path=tmp_path, pattern="*.md")
    expect(
        r"the text for training has 5 tokens, but data.context=8 needs more",
        path=tmp_path,
        context=8,
    )
    expect(r"data.tokenizer=none.json does not exist", tokenizer="none.json")
