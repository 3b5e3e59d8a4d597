"""Text: how much of the built-in validation text is also in the training text.

Binary and badly encoded files.
"""

import dataclasses
import re
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tokenizers
import torch
from engine import Package

MODEL = "gpt"
ROOT = Path(__file__).parents[2]


def repeated(train: Any, val: Any) -> float:
    """Return the fraction of val's bytes in a string of 64 bytes which train has too."""
    hashes = []
    for text in (train, val):
        hashed = text.numpy().astype(np.uint64) + np.uint64(1)
        factor = np.array([0x9E3779B97F4A7C15], np.uint64)
        for length in (1, 2, 4, 8, 16, 32):
            hashed = hashed[:-length] * factor + hashed[length:]
            factor = factor * factor
        hashes.append(hashed)
    candidate = np.zeros(2**24, bool)
    candidate[hashes[1] >> 40] = True
    starts = np.isin(hashes[1], hashes[0][candidate[hashes[0] >> 40]])
    return float(np.convolve(starts, np.ones(64))[: len(val)].astype(bool).mean())


def test_validation_text_of_the_standard_library_is_new(p: Package) -> None:
    """22% of its bytes were in such strings when the library was split by file."""
    data = p.data
    train, val, _ = data.load(data.DataConfig())
    texts = [part.tensors[0][:, :-1].flatten() for part in (train, val)]
    assert 0.005 < repeated(*texts) < 0.04


def test_the_split_depends_only_on_relative_names(p: Package, tmp_path: Path) -> None:
    data = p.data
    lengths = []
    for name in ("a", "b"):
        for number in range(30):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number}.txt").write_text("x" * (20 + number))
        train, val, _ = data.load(
            data.DataConfig(path=tmp_path / name, context=8, val_fraction=0.3)
        )
        lengths.append((len(train), len(val)))
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize(
    "names",
    [
        ("train/a.txt", "val/a.txt", "test/b/a.txt"),
        ("Training/a.txt", "validation/a.txt", "Testing/a.txt"),
        ("train.txt", "valid.txt", "test.txt"),
        ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"),
        ("a/b/train.txt", "a/b/dev.txt", "a/b/test.txt"),
        ("en/train/a", "en/eval/a", "en/test/a"),
        (
            "data/train.txt",
            "held/val.txt",
            "held/test.txt",
        ),
    ],
)
def test_names_of_files_and_folders_are_splits(
    p: Package, tmp_path: Path, names: tuple[str, ...]
) -> None:
    data = p.data
    cfg = data.DataConfig(
        path=tmp_path,
        context=8,
        test_fraction=0.5,
        val_fraction=0.2,
    )
    write(tmp_path, {name: bytes([60 + n]) * 99 for n, name in enumerate(names)})
    loaded = [*data.load(cfg)[:2], data.load_test(cfg)]
    assert [part.tensors[0].unique().tolist() for part in loaded] == [[60], [61], [62]]
    (tmp_path / names[1]).unlink()  # so the end of the training text is for validation
    train, val, _ = data.load(cfg)
    assert len(train) == round(99 * 0.8 - 1) // 8
    assert len(val) == (99 * 0.2 - 1) // 8
    assert train.tensors[0].unique().tolist() == val.tensors[0].unique().tolist() == [60]
    assert data.load_test(cfg).tensors[0].unique().tolist() == [62]


@pytest.mark.parametrize(
    "names",
    [
        ("index.md", "guide/install.md", "guide/train-a-model.md", "guide/validation.md"),
        ("README.md", "src/main.rs", "src/train.rs", "src/eval.rs"),
    ],
)
def test_words_of_splits_beside_others_in_a_folder_are_none(
    p: Package,
    tmp_path: Path,
    names: tuple[str, ...],
) -> None:
    write(tmp_path, dict.fromkeys(names, b"a" * 99))
    cfg = p.data.DataConfig(path=tmp_path, context=8, val_fraction=0.5)
    lines = p.data.describe(*p.data.load(cfg))
    assert "files for training" in lines[0]


def test_each_folder_may_have_splits(p: Package, tmp_path: Path) -> None:
    files = {
        "en/train/a": b"a" * 99,
        "de/train/a": b"a" * 99,
        "en/val/train": b"b" * 99,
        "de/val/b": b"c" * 99,
        "de/val/c": b"c" * 99,
    }
    write(tmp_path, files)
    cfg = p.data.DataConfig(path=tmp_path, context=8)
    train, val, spec = p.data.load(cfg)
    assert train.tensors[0].unique().tolist() == [*b"a"]
    assert val.tensors[0].unique().tolist() == [*b"bc"]
    counts = "192 tokens of 2 files for training and 296 tokens of 3 files for validation, in"
    assert p.data.describe(train, val, spec)[0].startswith(counts)


def test_names_of_splits_are_those_for_images() -> None:
    lists = []
    for name, variable in (("text_files", "SPLITS"), ("image_files", "SPLIT_FOLDERS")):
        module = (ROOT / f"template/data/shared/{name}.py").read_text()
        lists.append(re.findall(rf"^{variable} = (.*?^}})", module, re.DOTALL | re.MULTILINE))
    assert len(lists[0]) == 1
    assert lists[0] == lists[1]


def test_files_of_code_are_no_splits(p: Package, tmp_path: Path) -> None:
    names = [f"{name}.py" for name in ("train", "test_model", "a/val", *map(str, range(40)))]
    write(tmp_path, dict.fromkeys(names, b"x" * 99))
    cfg = p.data.DataConfig(
        path=tmp_path,
        context=8,
        val_fraction=0.3,
    )
    train, val, _ = p.data.load(cfg)
    assert 0 < len(val) < len(train)


def text_of(*parts: Any) -> str:
    """Return the text of windows of bytes."""
    windows = torch.cat([part.tensors[0] for part in parts])
    return "".join(bytes(window[:-1].tolist()).decode("latin-1") for window in windows)


TEXT = "".join(f"line {index:3}\n" for index in range(100))
UNDERSTOOD: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {
    "plain": ({"a.txt": TEXT.encode()}, {}),
    "a byte-order mark": ({"a.txt": TEXT.encode("utf-8-sig")}, {}),
    "Windows line ends": ({"a.txt": TEXT.replace("\n", "\r\n").encode()}, {}),
    "UTF-16": ({"a.txt": TEXT.encode("utf-16")}, {"encoding": "utf-16"}),
    "UTF-16 without a mark": ({"a.txt": TEXT.encode("utf-16-be")}, {"encoding": "utf-16-be"}),
    "an empty file": ({"a.txt": TEXT.encode(), "b.txt": b""}, {}),
    "hidden files": ({"a.txt": TEXT.encode(), ".b": b"b" * 99, ".c/d.txt": b"d" * 99}, {}),
    "system files": ({"a.txt": TEXT.encode(), "thumbs.db": b"\0", "b/Desktop.ini": b"b" * 99}, {}),
    "files of a NAS": ({"a.txt": TEXT.encode(), "@eaDir/b": b"b", "#recycle/c": b"c" * 99}, {}),
    "another suffix": ({"a/b/c.md": TEXT.encode(), "a.png": b"\xff\0"}, {"pattern": "*.md"}),
}


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_files_are_understood(p: Package, tmp_path: Path, case: str) -> None:
    data = p.data
    files, keys = UNDERSTOOD[case]
    write(tmp_path, files)
    cfg = data.DataConfig(
        path=tmp_path,
        context=8,
        val_fraction=0.2,
        **keys,
    )
    train, val, spec = data.load(cfg)
    assert spec == data.Spec(vocabulary=256, context=8)
    assert text_of(train) == TEXT[: len(train) * 8]
    assert text_of(val) == TEXT[720:][: len(val) * 8]


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


REFUSED: dict[str, tuple[dict[str, bytes], dict[str, Any], str]] = {
    "an empty folder": ({}, {}, "data.path=.* has no files that match \\*"),
    "only hidden files": ({".a/b.txt": b"b" * 99}, {}, "has no files that match"),
    "no such suffix": (
        {"a.txt": b"a"},
        {"pattern": "*.md"},
        "no files that match \\*.md",
    ),
    "an empty file": ({"a.txt": b""}, {}, "has no files that match"),
    "only a byte-order mark": (
        {"a.txt": b"\xef\xbb\xbf"},
        {},
        "the text for training has 0 tokens",
    ),
    "a short text": (
        {"a.txt": b"short"},
        {},
        "for training has 5 tokens, but data.context=8 needs",
    ),
    "short validation": (
        {"a.txt": b"a" * 99},
        {},
        "for validation has 2 tokens, but data.context=8",
    ),
    "Latin-1": (
        {"a.txt": "aaü".encode("latin-1")},
        {},
        "a.txt is not utf-8 at byte 2: set data.encoding",
    ),
    "an image": ({"a.png": b"\x89PNG"}, {}, "a.png is not utf-8 at byte 0: .* with data.pattern"),
    "zeros": ({"a.bin": bytes(99)}, {}, "a.bin is binary: set data.encoding, or leave"),
    "an unknown encoding": (
        {"a.txt": b"a" * 99},
        {"encoding": "utf9"},
        "data.encoding=utf9 is none",
    ),
    "a file beside splits": (
        {"train/a": b"a" * 99, "val.txt": b"b" * 99, "more/c.md": b"c" * 99},
        {},
        "has text for train and val, and other files, such as more/c.md: move these out, or rename",
    ),
    "a file beside the folder of the splits": (
        {
            "b/data/train.txt": b"a",
            "b/data/val.txt": b"b",
            "README.md": b"c",
        },
        {},
        "and other files, such as README.md: give data.path=.*/b/data, move these out, or rename",
    ),
    "a file beside folders of splits": (
        {
            "en/train": b"a",
            "en/eval": b"b",
            "de/train": b"c",
            "de/a": b"d",
        },
        {},
        "other files, such as de/a: give data.path=.*/en, move",
    ),
    "an encoding of bytes": (
        {"a.txt": b"a" * 99},
        {"encoding": "hex"},
        "data.encoding=hex is none",
    ),
    "an empty pattern": ({"a.txt": b"a" * 99}, {"pattern": ""}, "data.pattern is : give a pattern"),
    "no tokenizer": (
        {"a.txt": b"a" * 99},
        {"tokenizer": "b.json"},
        "data.tokenizer=b.json is no file",
    ),
    "an empty tokenizer": ({"a.txt": b"a" * 99}, {"tokenizer": ""}, "data.tokenizer= is no file"),
    "another JSON": (
        {"a.json": b"{}"},
        {"tokenizer": "~/a.json"},
        "=~/a.json is no tokenizer.json: ",
    ),
    "a binary tokenizer": (
        {"a": b"\xff"},
        {"tokenizer": "~/a"},
        "data.tokenizer=~/a is no tokenizer.json",
    ),
    "a large fraction": (
        {},
        {"val_fraction": 0.6, "test_fraction": 0.4},
        "data.test_fraction is 0.4: ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_are_refused_in_one_line(
    p: Package, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = p
    monkeypatch.setenv("HOME", str(tmp_path))
    files, keys, message = REFUSED[case]
    write(tmp_path, files)
    with pytest.raises(project.errors.UserError, match=message) as raised:
        project.data.load(
            project.data.DataConfig(
                path=Path("~"),
                context=8,
                **keys,
            )
        )
    assert "\n" not in str(raised.value)


def test_paths_that_are_missing_or_empty_are_one_line(p: Package) -> None:
    project = p
    for path, message in (
        ("nowhere", "data.path=nowhere does not exist"),
        ("", "data.path is empty"),
    ):
        with pytest.raises(project.errors.UserError, match=message):
            project.data.load(project.data.DataConfig(path=Path(path)))


def test_links_to_folders_are_not_followed(p: Package, tmp_path: Path) -> None:
    data = p.data
    write(tmp_path, {"a.txt": TEXT.encode()})
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")
    train, _, _ = data.load(
        data.DataConfig(
            path=tmp_path,
            context=8,
            val_fraction=0.2,
        )
    )
    assert text_of(train) == TEXT[: len(train) * 8]


def byte_pairs(file: Path) -> tokenizers.Tokenizer:
    """Write a tokenizer whose padding and truncation are not for language modeling."""
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    pairs.train_from_iterator(["größer"], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet))
    pairs.enable_truncation(4)
    pairs.enable_padding(length=5000)
    pairs.save(str(file))
    return pairs


def test_a_run_keeps_its_tokenizer(p: Package, tmp_path: Path) -> None:
    """Edited, the file would give other ids for the same text."""
    data = p.data
    file = tmp_path / "pairs.json"
    pairs = byte_pairs(file)
    write(tmp_path, {"a.txt": "größer \n".encode() * 200})
    cfg = data.DataConfig(
        path=tmp_path / "a.txt",
        tokenizer=str(file),
        context=8,
        val_fraction=0.3,
        test_fraction=0.3,
    )
    train, val, spec = data.load(cfg)
    assert data.Spec(**dataclasses.asdict(spec)) == spec
    assert "größer" in pairs.decode(train.tensors[0][:, :-1].flatten().tolist())
    file.unlink()
    train_again, val_again, spec_again = data.load(cfg, spec)
    assert spec_again is spec
    assert torch.equal(train_again.tensors[0], train.tensors[0])
    assert torch.equal(val_again.tensors[0], val.tensors[0])
    assert len(data.load_test(cfg, spec)) == (600 * 0.3 - 1) // 8


def test_a_tokenizer_without_a_token_for_a_word_is_one_line(p: Package, tmp_path: Path) -> None:
    project = p
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"line": 0}, "?"))
    words.save(str(tmp_path / "words.json"))
    write(tmp_path, {"a.txt": TEXT.encode()})
    cfg = project.data.DataConfig(
        path=tmp_path / "a.txt", tokenizer=str(tmp_path / "words.json"), context=8
    )
    with pytest.raises(project.errors.UserError, match="cannot encode the text: .*UNK"):
        project.data.load(cfg)


def test_a_description_counts_unknown_tokens(p: Package, tmp_path: Path) -> None:
    data = p.data
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "line": 1}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram([("x", -1.0), ("?", -9.0)], 1))
    no_unknown = byte_pairs(tmp_path / "pairs.json")
    tokens = tmp_path / "tokens.json"
    for tokenizer, text, percent in (
        (words, "line 12\n", "50.00%"),
        (unigram, "xy", "50.00%"),
        (no_unknown, "x", None),
    ):
        tokenizer.save(str(tokens))
        write(tmp_path, {"a.txt": text.encode() * 800})
        cfg = data.DataConfig(
            path=tmp_path / "a.txt",
            context=8,
            tokenizer=str(tokens),
        )
        lines = data.describe(*data.load(cfg))[1:]
        unknown = f"{percent} of the training tokens are unknown to the tokenizer"
        assert lines == ([unknown] if percent else [])


def test_a_description_has_the_tokens(p: Package, tmp_path: Path) -> None:
    data = p.data
    write(tmp_path, {"a.txt": b"x" * 20000})
    loaded = data.load(
        data.DataConfig(
            path=tmp_path,
            context=8,
            val_fraction=0.2,
        )
    )
    assert data.describe(*loaded) == [
        "15,992 tokens for training and 3,992 tokens for validation, in windows of 8; "
        "a vocabulary of 256 tokens (bytes)"
    ]


def test_predictions_are_made_with_the_tokenizer_of_the_run(
    package: Callable[[str, str], Any], tmp_path: Path
) -> None:
    p = package("gpt", "predict")
    pairs = byte_pairs(tmp_path / "pairs.json")
    size = pairs.get_vocab_size()
    spec = p.data.Spec(
        vocabulary=size,
        context=8,
        tokenizer=pairs.to_str(),
    )
    net = p.model.build(p.model.ModelConfig(), spec)
    command = import_module(f"{p.name}.components.predict_data")
    options = Namespace(
        prompt="größer",
        tokens=5,
        seed=0,
        temperature=1.0,
        device="cpu",
    )
    with torch.no_grad():
        new = command.continue_prompt(options, spec, net)
        options.tokens = 0
        assert command.continue_prompt(options, spec, net) == ""
    assert 1 <= len(new) <= 30
    words = tokenizers.Tokenizer(tokenizers.models.BPE({"g": 0}, []))
    spec = dataclasses.replace(spec, tokenizer=words.to_str())
    options.prompt = "x"
    with pytest.raises(p.errors.UserError, match="--prompt 'x' has no tokens: give another"):
        command.continue_prompt(options, spec, net)


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_tokens_of_a_large_text_stay_in_a_file(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data = p.data
    text = "".join(f"line \u00e4 {number}\r\n" for number in range(200))
    tokenizer = "bytes"
    if kind == "words":
        numbers = {word: number for number, word in enumerate(["none", *text.split()])}
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, "none"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer = str(tmp_path / "words.json")
        words.save(tokenizer)
    file = tmp_path / "a.txt"
    file.write_bytes(text.encode("utf-16"))
    cfg = data.DataConfig(
        path=file,
        context=8,
        encoding="utf-16",
        tokenizer=tokenizer,
        val_fraction=0.2,
        test_fraction=0.2,
        tokens=tmp_path / "tokens",
    )
    expected = (*data.load(cfg), data.load_test(cfg))
    monkeypatch.setattr(data, "LARGE", 0)
    monkeypatch.setattr(data, "PART", 99)  # an odd number of bytes
    large = (*data.load(cfg), data.load_test(cfg))
    assert large[2] == expected[2]
    for split, whole in zip(
        (large[0], large[1], large[3]), (*expected[:2], expected[3]), strict=True
    ):
        assert len(split) == len(whole)
        indices = [len(whole) - 1, 0, 3]
        batch = split.__getitems__(indices)[0]
        of_whole = whole.__getitems__(indices)[0]
        assert batch.dtype == of_whole.dtype
        assert torch.equal(batch, of_whole)

    monkeypatch.setattr(data, "_read_text", Mock(side_effect=AssertionError))
    (written,) = (tmp_path / "tokens").iterdir()
    assert data.load(cfg)[2] == expected[2], "the text is read once"
    file.write_bytes((text + "changed").encode("utf-16"))
    with pytest.raises(AssertionError):
        data.load(cfg)
    assert list((tmp_path / "tokens").iterdir()) == [written]


def test_a_byte_in_a_later_part_that_is_not_text_is_named(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_bytes("\u00e4".encode() * 50 + b"\xff")
    monkeypatch.setattr(p.data, "PART", 7)
    with pytest.raises(p.errors.UserError, match="a.txt is not utf-8 at byte 100: set data.e"):
        p.data.load(p.data.DataConfig(path=tmp_path, context=8))
