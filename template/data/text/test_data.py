"""Text data: built-in text, tokenization, windows, splits, and errors."""

import os
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import tiktoken
import tokenizers
import torch
from torch import Tensor

from .. import data
from ..errors import UserError
from ..readers import text
from ..readers.tokenizer import Tokenizer, open_tokenizer
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


@pytest.mark.parametrize("as_glob", [False, True])
def test_files_of_a_folder_or_glob_are_not_divided(tmp_path: Path, as_glob: bool) -> None:
    folder = tmp_path / "texts" / "deeper"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / f"{number}.md").write_text(f"{number:02d} " * 100)
    (folder / "x.bin").write_bytes(b"\xff" * 1000)
    where = {"path": tmp_path / "texts" / "**" / "*.md"} if as_glob else {"path": tmp_path / "texts", "pattern": "*.md"}
    found = data.load(data.DataConfig(**where, context=32, val_fraction=0.2, cache_dir=tmp_path / "cache"))
    train, val = (set(bytes(split.tokens.numpy()).decode().split()) for split in (found.train, found.val))
    assert train.isdisjoint(val)
    assert len(train | val) == 40


def test_split_depends_only_on_relative_names(tmp_path: Path) -> None:
    val_texts = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        for number in range(30):
            (tmp_path / place / f"{number}.md").write_text(f"{number:02d} " * (100 if place == "here" else 50))
        cfg = data.DataConfig(path=tmp_path / place, context=8, val_fraction=0.3, cache_dir=tmp_path / "cache")
        val_texts.append(set(bytes(data.load(cfg).val.tokens.numpy()).decode().split()))
    assert val_texts[0] == val_texts[1]
    assert 2 < len(val_texts[0]) < 20


def test_tokenizers_decode_to_the_original_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "CHUNK", 100)
    content = "".join(f"Zeile {number}: größer als {number % 7} ab\n" for number in range(400)) + "ohne Ende é" * 99
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    pairs = write_byte_pairs(tmp_path / "pairs.json", content)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: tiny_encoding())
    for name, vocabulary in (("bytes", 256), (str(pairs), 300), ("gpt2", 258)):
        cfg = data.DataConfig(path=tmp_path / "a.txt", context=16, val_fraction=0.1, tokenizer=name)
        found = data.load(replace(cfg, cache_dir=tmp_path / "cache"))
        splits = (found.train.tokens, found.val.tokens)
        assert found.spec.vocabulary == vocabulary
        assert {tokens.dtype for tokens in splits} == {torch.uint8 if vocabulary == 256 else torch.int16}
        decode = open_tokenizer(name).decode
        assert "".join(decode(tokens.tolist()) for tokens in splits) == content
        val_texts = len(decode(splits[1].tolist()).encode())
        assert found.spec.bytes_per_token == pytest.approx(val_texts / len(splits[1]))
        assert (name == "bytes") == (found.spec.bytes_per_token == 1)


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


def test_tokens_are_cached_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("eins zwei drei " * 100)
    tokenizer = str(write_byte_pairs(tmp_path / "pairs.json", "eins zwei"))
    cfg = data.DataConfig(path=tmp_path / "a.txt", tokenizer=tokenizer, context=8, val_fraction=0.5)
    cfg = replace(cfg, cache_dir=tmp_path / "cache")
    first = data.load(cfg)
    opened: list[str] = []

    def note(name: str) -> Tokenizer:
        opened.append(name)
        return open_tokenizer(name)

    monkeypatch.setattr(text, "open_tokenizer", note)
    assert torch.equal(data.load(cfg).train.tokens, first.train.tokens)
    assert not opened
    (tmp_path / "a.txt").write_text("vier fünf " * 100, encoding="utf-8")
    second = data.load(cfg)
    assert open_tokenizer(tokenizer).decode(second.train.tokens.tolist()).startswith("vier fünf ")
    write_byte_pairs(tmp_path / "pairs.json", "vier vier vier")
    assert data.load(cfg).spec.vocabulary == 260 != first.spec.vocabulary


def test_unreadable_files_are_skipped_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text("good text\n" * 20)
    (folder / "latin.txt").write_bytes("größer".encode("latin-1"))
    (folder / "locked.txt").write_text("secret " * 20)
    (folder / "empty.txt").write_text("")
    chunks = text._chunks

    def deny(piece: text.Piece) -> Any:
        if piece.file.name == "locked.txt":
            raise PermissionError(13, "Permission denied", str(piece.file))
        return chunks(piece)

    monkeypatch.setattr(text, "_chunks", deny)
    tokenizer = str(write_byte_pairs(tmp_path / "pairs.json", "good text"))
    cfg = data.DataConfig(path=folder, tokenizer=tokenizer, context=8, val_fraction=0.2, max_unreadable=0.1)
    found = data.load(replace(cfg, cache_dir=tmp_path / "cache"))
    messages = "\n".join(found.problems)
    assert len(found.problems) == 3
    assert "latin.txt: not UTF-8" in messages
    assert "locked.txt: Permission denied" in messages
    assert "1 of 23 files are empty" in messages
    tokens = torch.cat([found.train.tokens, found.val.tokens]).tolist()
    assert open_tokenizer(tokenizer).decode(tokens) == "good text\n" * 400
    with pytest.raises(UserError, match=r"2 of 23 cannot be read \(.*latin.txt.*data.max_unreadable=0.05"):
        data.load(replace(cfg, max_unreadable=0.05, cache_dir=tmp_path / "other"))
    as_bytes = replace(cfg, tokenizer="bytes", cache_dir=tmp_path / "other")
    assert not any("latin" in problem for problem in data.load(as_bytes).problems)  # any byte is valid


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "does not exist"),
        (lambda folder: folder / "*.md", "matches no file"),
        (lambda folder: folder, "no file that matches"),
        (lambda folder: [(folder / "a").write_text("short"), folder][1], "more than data.context"),
        (lambda folder: [(folder / "a").write_text(""), folder][1], "more than data.context"),
    ],
)
def test_invalid_path_is_an_error(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    (tmp_path / "texts").mkdir()
    with pytest.raises(UserError, match=message):
        data.load(data.DataConfig(path=make(tmp_path / "texts"), cache_dir=tmp_path / "cache"))


def no_network(name: str) -> NoReturn:
    raise ConnectionError("no route to host")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ("words", "tokenizer=words is unknown: give bytes, a .json file or one of .*gpt2"),
        ("gpt2", "cannot be downloaded .* copy the folder TIKTOKEN_CACHE_DIR"),
        ("nowhere.json", "tokenizer=nowhere.json does not exist"),
        ("broken.json", "broken.json is not a tokenizer.json of tokenizers"),
    ],
)
def test_invalid_tokenizer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tiktoken, "get_encoding", no_network)
    Path("broken.json").write_text("{}")
    Path("a.txt").write_text("some text " * 100)
    with pytest.raises(UserError, match=message):
        data.load(data.DataConfig(path=Path("a.txt"), tokenizer=tokenizer))


def test_missing_tokenizer_package_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tiktoken", None)
    with pytest.raises(UserError, match=r"pip install -e '.\[tokenizers\]'"):
        data.load(data.DataConfig(tokenizer="gpt2", cache_dir=tmp_path / "cache"))


def test_damaged_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text " * 100)
    cfg = data.DataConfig(path=tmp_path / "a.txt", context=8, cache_dir=tmp_path / "cache")
    data.load(cfg)
    (tokens,) = (tmp_path / "cache").glob("text-*/train")
    tokens.unlink()
    with pytest.raises(UserError, match="is damaged .*: remove it"):
        data.load(cfg)


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
