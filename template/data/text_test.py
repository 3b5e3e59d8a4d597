"""Text: what is loaded, how it is cut, and what a bad folder gives."""

import sysconfig
from pathlib import Path

import pytest
import torch

from .. import data
from ..errors import UserError


def test_the_standard_library_is_split_by_file() -> None:
    found = data.load(data.DataConfig())
    assert found.spec.vocabulary == 256
    share = len(found.val) / (len(found.train) + len(found.val))
    assert 0.005 < share < 0.06
    module = Path(sysconfig.get_paths()["stdlib"], "typing.py").read_bytes()[:2000]
    splits = [bytes(split.tokens.numpy()) for split in (found.train, found.val)]
    assert [module in text for text in splits].count(True) == 1


def test_windows_follow_each_other_and_targets_are_one_ahead(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(200)) * 20)
    cfg = data.DataConfig(path=tmp_path / "a.txt", context=16, val_fraction=0.1)
    found = data.load(cfg)
    assert len(found.train) == (3600 - 1) // 16
    (tokens,) = found.train.__getitems__([0, 2])
    assert tokens.dtype == torch.uint8
    assert tokens[1].tolist() == list(range(32, 49))
    inputs, targets = data.Prepare(found.spec, cfg)((tokens,), True, torch.default_generator)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.dtype == torch.int64


def test_a_folder_of_texts_keeps_files_whole(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.md").write_text(f"{number:02d} " * 100)
    (tmp_path / "x.bin").write_bytes(b"\xff" * 1000)
    found = data.load(data.DataConfig(path=tmp_path, pattern="*.md", context=32, val_fraction=0.2))
    train, val = (set(bytes(split.tokens.numpy()).decode().split()) for split in (found.train, found.val))
    assert train.isdisjoint(val)
    assert len(train | val) == 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "does not exist"),
        (lambda folder: folder, "no file that matches"),
        (lambda folder: [(folder / "a").write_text("short"), folder][1], "more than data.context"),
        (lambda folder: [(folder / "a").write_text(""), folder][1], "more than data.context"),
    ],
)
def test_bad_folders(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(UserError, match=message):
        data.load(data.DataConfig(path=make(tmp_path)))
