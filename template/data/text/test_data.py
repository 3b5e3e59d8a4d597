"""Text: the built-in split, windows, your own files, tokenizers, and errors."""

from pathlib import Path

import pytest
import tokenizers
import torch

from .. import data
from ..errors import UserError


def test_the_standard_library_is_split_by_module() -> None:
    train, val, spec = data.load(data.DataConfig())
    assert spec == data.Spec(vocabulary=256, context=128, bytes_per_token=1.0)
    assert 0.005 < len(val) / (len(train) + len(val)) < 0.06


def test_targets_are_the_inputs_shifted_by_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(200)) * 20)
    cfg = data.DataConfig(path=tmp_path / "a.txt", context=16, val_fraction=0.1)
    train, val, spec = data.load(cfg)
    assert (len(train), len(val)) == (3599 // 16, 399 // 16)
    batch = train.__getitems__([0, 2])
    assert batch[0].dtype == torch.uint8
    assert batch[0][1].tolist() == list(range(32, 49))
    inputs, targets = data.Prepare(spec, cfg)(batch, True, torch.Generator())
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.is_contiguous()
    assert targets.is_contiguous()


def test_files_of_a_folder_are_not_divided(tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / str(number % 3)
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_bytes(bytes([number]) * 50)
    (tmp_path / ".hidden.txt").write_bytes(bytes([99]) * 50)
    train, val, _ = data.load(
        data.DataConfig(path=tmp_path, pattern="*.txt", context=8, val_fraction=0.3)
    )
    found = [
        set(torch.cat(part.__getitems__(list(range(len(part))))).flatten().tolist())
        for part in (train, val)
    ]
    assert found[0].isdisjoint(found[1])
    assert found[0] | found[1] == set(range(40))


def test_a_tokenizer_gives_tokens_and_their_bytes(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{number}": number for number in range(300)}, "w0")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.enable_truncation(4)  # as in many published files
    words.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text(" ".join(f"w{number % 300}" for number in range(2000)))
    tokenizer = str(tmp_path / "words.json")
    train, _, spec = data.load(
        data.DataConfig(path=tmp_path / "a.txt", tokenizer=tokenizer, context=8, val_fraction=0.1)
    )
    assert spec.vocabulary == 300
    assert spec.bytes_per_token == pytest.approx(4.6, abs=0.1)
    assert train.__getitems__([40])[0].tolist() == [[number % 300 for number in range(320, 329)]]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(UserError, match=r"data.path=.*nowhere is neither a file nor a folder"):
        data.load(data.DataConfig(path=tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"files that match \*.md"):
        data.load(data.DataConfig(path=tmp_path, pattern="*.md"))
    with pytest.raises(
        UserError, match=r"the text for training has 5 tokens, but data.context=8 needs more"
    ):
        data.load(data.DataConfig(path=tmp_path, context=8))
    with pytest.raises(UserError, match=r"data.tokenizer=none.json does not exist"):
        data.load(data.DataConfig(tokenizer="none.json"))
