"""Text data: built-in text, tokenization, windows, splits, and errors."""

import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizers
import torch
from torch import Tensor

from .. import data
from ..readers.windows import Windows
from ..tools import view


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


def test_standard_library_is_split_by_file() -> None:
    found = data.load(data.DataConfig())
    assert found.spec == data.Spec(256, 128, 1.0, "bytes")
    fraction = len(found.val) / (len(found.train) + len(found.val))
    assert 0.005 < fraction < 0.06
    module = Path(sysconfig.get_paths()["stdlib"], "typing.py").read_bytes()[:2000]
    splits = [bytes(split.tokens.numpy()) for split in (found.train, found.val)]
    assert [module in text for text in splits].count(True) == 1


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
