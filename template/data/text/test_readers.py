"""Your own text: files, tokenizers, caches, and errors.

Delete this file together with the example's data.py: nothing else needs it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tiktoken
import torch

from .. import data
from ..errors import UserError
from ..readers import text
from ..readers.tokenizer import Tokenizer, open_tokenizer
from .test_data import tiny_encoding, write_byte_pairs


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


def test_damaged_cache_is_built_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words to read\n" * 50)
    cfg = data.DataConfig(path=tmp_path / "a.txt", context=8, cache_dir=tmp_path / "cache")
    tokens = data.load(cfg).train.tokens.clone()
    (file,) = (tmp_path / "cache").glob("text-*/train")
    file.write_bytes(file.read_bytes()[:10])
    assert torch.equal(data.load(cfg).train.tokens, tokens)
