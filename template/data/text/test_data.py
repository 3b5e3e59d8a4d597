"""Text data: built-in text, tokenization, windows, splits, and errors.

Delete this file and test_readers.py together with the example's data.py: nothing else needs them.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizers
import torch
from torch import Tensor

from .. import data
from ..readers import library
from ..readers.windows import Windows
from ..tools import view

pytestmark = pytest.mark.fast


def prepared(found: data.Data, split: Windows, cfg: data.DataConfig) -> Tensor:
    """All prepared inputs of a split."""
    batch = split.__getitems__(list(range(len(split))))
    inputs: Tensor = data.Prepare(found.spec, cfg)(batch, False, torch.default_generator)[0]
    return inputs


def write_words(file: Path, count: int) -> Path:
    """A tokenizer with one token per word: w0, w1 and so on."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{number}": number for number in range(count)}, "w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.enable_truncation(4)  # as in many published files
    words.save(str(file))
    return file


def write_byte_pairs(file: Path, training: str, size: int = 300) -> Path:
    """A byte-level BPE tokenizer, like that of GPT-2, which decodes to the original text."""
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    pairs.train_from_iterator([training], trainer)
    pairs.save(str(file))
    return file


def tiny_encoding() -> tiktoken.Encoding:
    """A tiktoken encoding with one merge, `ab`, and a special token."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    return tiktoken.Encoding("tiny", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|end|>": 257})


def test_families_of_the_standard_library_are_not_divided() -> None:
    found = data.load(data.DataConfig())
    assert found.spec == data.Spec(256, 128, 1.0, "bytes")
    fraction = len(found.val.tokens) / (len(found.train.tokens) + len(found.val.tokens))
    assert fraction == pytest.approx(0.02, rel=0.01)
    root, files = library.library_files()
    in_val = library.library_validation(root, files, 0.3)
    packages = {file: file.relative_to(root).parts[0] for file in files}
    assert {packages[file] for file in in_val}.isdisjoint(packages[file] for file in set(files) - in_val)
    for kinds in (("_pyio.py", "io.py"), ("bz2.py", "lzma.py"), ("ntpath.py", "posixpath.py")):
        assert len({root / kind in in_val for kind in kinds}) == 1


def test_validation_text_of_the_standard_library_is_new() -> None:
    """22 % of its bytes were in strings of 64 bytes that train has too when the library was split by file."""
    found = data.load(data.DataConfig())
    assert 0.005 < repeated(found.train.tokens, found.val.tokens) < 0.04


def repeated(train: Tensor, val: Tensor) -> float:
    """The fraction of val's bytes that are in a string of 64 bytes which train has too, by a hash of each string."""
    hashes = []
    for text in (train, val):
        hashed, factor = text.numpy().astype(np.uint64) + np.uint64(1), np.array([0x9E3779B97F4A7C15], np.uint64)
        for length in (1, 2, 4, 8, 16, 32):
            hashed, factor = hashed[:-length] * factor + hashed[length:], factor * factor
        hashes.append(hashed)
    candidate = np.zeros(2**24, bool)
    candidate[hashes[1] >> 40] = True
    starts = np.isin(hashes[1], hashes[0][candidate[hashes[0] >> 40]])
    return float(np.convolve(starts, np.ones(64))[: len(val)].astype(bool).mean())


def test_windows_are_consecutive_and_targets_are_shifted_by_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(200)) * 20)
    cfg = data.DataConfig(path=tmp_path / "a.txt", context=16, val_fraction=0.1, cache_dir=tmp_path / "cache")
    found = data.load(cfg)
    assert len(found.train) == (3600 - 1) // 16
    (tokens,) = found.train.__getitems__([0, 2])
    assert tokens.dtype == torch.uint8
    assert tokens[1].tolist() == list(range(32, 49))
    inputs, targets = data.Prepare(found.spec, cfg)((tokens,), True, torch.default_generator)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.dtype == torch.int64
    for dtype in (torch.uint8, torch.int16, torch.int32):
        for part in data.Prepare(found.spec, cfg)((tokens.to(dtype),), True, torch.default_generator):
            assert part.view(-1).tolist() == part.flatten().tolist(), "as in many published models"


@pytest.mark.parametrize(("words", "dtype"), [(40_000, torch.int16), (70_000, torch.int32)])
def test_large_vocabularies_are_supported(tmp_path: Path, words: int, dtype: torch.dtype) -> None:
    numbers = np.random.default_rng(0).integers(0, words, 3000)
    (tmp_path / "a.txt").write_text(" ".join(f"w{number}" for number in numbers))
    tokenizer = str(write_words(tmp_path / "words.json", words))
    cfg = data.DataConfig(path=tmp_path / "a.txt", tokenizer=tokenizer, context=8, cache_dir=tmp_path / "cache")
    found = data.load(cfg)
    assert found.train.__getitems__([0])[0].dtype == dtype
    assert found.spec.vocabulary == words
    inputs = prepared(found, found.train, cfg)
    assert inputs.flatten().tolist() == numbers[: inputs.numel()].tolist()


def test_summary_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("größer ab\n" * 100, encoding="utf-8")
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: tiny_encoding())
    cfg = data.DataConfig(path=tmp_path / "a.txt", tokenizer="gpt2", context=8, cache_dir=tmp_path / "cache")
    found = data.load(cfg)
    assert view.summary(found)["vocabulary"].startswith("258 tokens, of which 9")
    batch = data.Prepare(found.spec, cfg)(found.train.__getitems__([0, 1]), True, torch.Generator())
    figure = view.plot(batch, found.spec)
    plotted = [label.get_text() for label in figure.axes[0].texts]
    assert plotted[:4] == ["g", "r", *["\N{REPLACEMENT CHARACTER}"] * 2]  # two bytes of one character
    figure.savefig(os.devnull, format="png")
