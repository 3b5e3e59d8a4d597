"""Text: the built-in split, windows, your own files, tokenizers."""

from pathlib import Path

import pytest
import tokenizers
import torch

from .. import data


def test_the_standard_library_is_split_by_module() -> None:
    cfg = data.DataConfig()
    train, val, spec = data.load(cfg)
    assert spec == data.Spec(
        vocabulary=256,
        context=128,
        bytes_per_token=1.0,
    )
    assert 0.005 < len(val) / len(train) < 0.06
    assert data.load_test(cfg) is None


def test_targets_are_the_inputs_shifted_by_one(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(bytes(range(1, 101)) * 40)
    cfg = data.DataConfig(
        path=file,
        context=16,
        val_fraction=0.1,
    )
    train, val, spec = data.load(cfg)
    assert len(train) == 3599 // 16
    assert len(val) == 399 // 16
    batch = train.__getitems__([0, 2])
    assert batch[0].dtype == torch.uint8
    assert batch[0][1].tolist() == list(range(33, 50))
    prepare = data.Prepare(spec, cfg)
    inputs, targets = prepare(batch, True, torch.Generator())
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.is_contiguous()
    assert targets.is_contiguous()


def test_files_of_a_folder_are_not_divided(tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / str(number % 3)
        folder.mkdir(exist_ok=True)
        file = folder / f"{number}.txt"
        file.write_bytes(bytes([40 + number]) * 50)
    (tmp_path / ".hidden.txt").write_bytes(bytes([99]) * 50)
    cfg = data.DataConfig(
        path=tmp_path,
        pattern="*.txt",
        context=8,
        val_fraction=0.3,
        test_fraction=0.3,
    )
    train, val, _ = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    splits = []
    for split in (train, val, test):
        tokens = split.tensors[0].unique()
        splits.append(tokens.tolist())
    assert all(splits)
    values = splits[0] + splits[1] + splits[2]
    assert sorted(values) == list(range(40, 80))


def test_the_end_of_a_file_is_for_validation_and_the_test(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a" * 100 + "b" * 50 + "c" * 50)
    cfg = data.DataConfig(
        path=file,
        context=8,
        val_fraction=0.25,
        test_fraction=0.25,
    )
    train, val, _ = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    tokens = [split.tensors[0].unique().tolist() for split in (train, val, test)]
    assert tokens == [[ord("a")], [ord("b")], [ord("c")]]


def test_a_tokenizer_gives_tokens_and_their_bytes(tmp_path: Path) -> None:
    numbers = {f"w{number}": number for number in range(300)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, "w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.enable_truncation(4)  # as in many published files
    tokenizer = tmp_path / "words.json"
    words.save(str(tokenizer))
    file = tmp_path / "a.txt"
    file.write_text(" ".join(numbers) * 6)
    cfg = data.DataConfig(
        path=file,
        tokenizer=str(tokenizer),
        context=8,
        val_fraction=0.1,
    )
    train, _, spec = data.load(cfg)
    assert spec.vocabulary == 300
    assert spec.bytes_per_token == pytest.approx(4.6, abs=0.1)
    assert train.tensors[0][3].tolist() == list(range(24, 33))
    assert data.load_test(cfg) is None

    tokenizer.unlink()  # the run has a copy
    again, val, _ = data.load(cfg, spec)
    assert torch.equal(again.tensors[0], train.tensors[0])
    line, unknown = data.describe(again, val, spec)
    assert line.endswith("a vocabulary of 300 tokens (of 4.6 bytes on average)")
    assert unknown.endswith("% of the training tokens are unknown to the tokenizer")  # w0
