"""Folders of images and masks: formats, splits, unreadable files, caches, and errors.

Delete this file together with the example's data.py: nothing else needs it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data
from ..errors import UserError
from ..readers import mask_folder
from ..readers import masks as reader
from ..readers.unreadable import UnreadableError
from .test_data import RED, load, load_all, make_folder


def test_split_by_folder_with_subfolders_and_different_suffixes(tmp_path: Path) -> None:
    make_folder(tmp_path / "own" / "train", 4)
    make_folder(tmp_path / "own" / "val", 3, first=4)
    (tmp_path / "own" / "train" / "images" / "deep").mkdir()
    (tmp_path / "own" / "train" / "masks" / "deep").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "own" / "train" / "images" / "deep" / "x.jpg")
    Image.new("L", (8, 8)).save(tmp_path / "own" / "train" / "masks" / "deep" / "x.bmp")
    found = load(tmp_path / "own")
    assert (len(found.train), len(found.val)) == (5, 3)


def test_black_and_white_masks_have_classes_0_and_1(tmp_path: Path) -> None:
    found = load(make_folder(tmp_path / "own", 10, (0, 255)))
    assert (found.spec.classes, found.spec.values) == (("0", "1"), (0, 255))
    assert load_all(found.train)[1].unique().tolist() == [0, 1]


@pytest.mark.parametrize("value", [0, 255])
def test_ignored_value_is_not_a_class(tmp_path: Path, value: int) -> None:
    values = (0, 1, 2, 255)
    found = load(make_folder(tmp_path / "own", 10, values), ignore=value)
    kept = tuple(other for other in values if other != value)
    assert (found.spec.values, found.spec.ignore) == (kept, data.IGNORED)
    assert load_all(found.train)[1].unique().tolist() == [0, 1, 2, 255]


def test_palette_1_bit_and_16_bit_masks_are_read(tmp_path: Path) -> None:
    values = np.array([[0, 1], [1, 0]], np.uint8)
    palette = Image.fromarray(values)
    palette.putpalette([9, 9, 9, *RED])
    palette.save(tmp_path / "palette.png")
    Image.fromarray(values.astype(bool)).save(tmp_path / "bit.png")
    Image.fromarray(values.astype(np.uint16)).save(tmp_path / "wide.png")
    for name in ("palette", "bit", "wide"):
        read = mask_folder.read_mask(tmp_path / f"{name}.png")
        assert read.dtype.name == "uint8"
        assert np.array_equal(read, values)
    Image.fromarray(values.astype(np.uint16) * 300).save(tmp_path / "large.png")
    with pytest.raises(UnreadableError, match="value 300"):
        mask_folder.read_mask(tmp_path / "large.png")


def test_exif_orientation_is_applied_before_comparing_sizes(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "own", 10)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 40), RED).save(root / "images" / "000.png", exif=exif)
    assert load(root).problems == ()


def test_files_without_counterpart_are_reported(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "own", 10)
    (root / "masks" / "003.png").unlink()
    (root / "images" / "007.png").rename(root / "images" / "seven.png")
    with pytest.raises(UserError, match=r"^3 of 11 have no counterpart: 2 images in .* 003, seven; 1 masks .*=0.05$"):
        load(root)
    found = load(root, max_unreadable=0.3)
    assert len(found.train) + len(found.val) == 8
    assert found.problems[0] == f"2 images in {root} have no mask: 003, seven"
    assert found.problems[1] == f"1 masks in {root} have no image: 007"
    (root / "masks" / "000.png").write_bytes(b"")
    with pytest.raises(UserError, match="1 of 11 cannot be read, besides 3 without counterpart"):
        load(root, max_unreadable=0.3)


def test_unusable_files_are_skipped_up_to_a_limit(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "own", 20)
    (root / "masks" / "002.png").write_bytes(b"")
    (root / "images" / "005.png").write_bytes(b"not an image")
    Image.new("L", (7, 9)).save(root / "masks" / "011.png")
    found = load(root, max_unreadable=0.2)
    assert len(found.train) + len(found.val) == 17
    text = "\n".join(found.problems)
    for part in ("002.png: not an image", "005.png cannot be read: not an image", "has 7 x 9 pixels", "40 x 30"):
        assert part in text
    with pytest.raises(UserError, match="2 of 20 cannot be read .* or raise data.max_unreadable=0.05"):
        load(root)


def test_broken_image_is_replaced_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_folder(tmp_path / "own", 20)
    for kind in ("none", "disk"):
        found = load(root, cache=kind, cache_dir=tmp_path / kind)
        assert (len(found.train), len(found.val), found.problems) == (16, 4, ())
    broken = root / "images" / "000.png"
    broken.write_bytes(broken.read_bytes()[:60])  # the header remains
    found = load(root, max_unreadable=0.2)
    assert len(load_all(found.train)[0]) + len(load_all(found.val)[0]) == 20
    assert "000.png" in capsys.readouterr().err
    found = load(root, cache="disk", max_unreadable=0.2)
    assert len(found.train) + len(found.val) == 19
    assert "000.png" in found.problems[0]


def test_cache_is_rebuilt_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(tmp_path / "own", 10)
    before = load(root, cache="disk")
    read: list[Path] = []
    read_mask = mask_folder.read_mask

    def note(file: Path) -> Any:
        read.append(file)
        return read_mask(file)

    monkeypatch.setattr(reader, "read_mask", note)
    again = load(root, cache="disk")
    assert not read
    assert torch.equal(load_all(before.train)[1], load_all(again.train)[1])
    make_folder(root, 2, (0, 5), first=10)
    assert "5" in load(root, cache="disk").spec.classes
    assert len(read) == 2 * 12


Change = Callable[[Path], Any]


def _fill(folder: Path, value: int) -> None:
    for file in folder.rglob("masks/*.png"):
        Image.new("L", (40, 30), value).save(file)


def _to_jpeg(folder: Path) -> None:
    for file in folder.rglob("masks/*.png"):
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()


def _to_color(folder: Path) -> None:
    for file in folder.rglob("masks/*.png"):
        Image.new("RGB", (40, 30)).save(file)


def _to_hidden_jpeg(folder: Path) -> None:
    for file in folder.rglob("masks/*.png"):
        Image.new("L", (40, 30)).save(file, format="JPEG")


def _rename(folder: Path) -> None:
    for file in folder.rglob("masks/*.png"):
        file.rename(file.with_name(f"mask-{file.name}"))


def _empty(folder: Path) -> None:
    for file in folder.rglob("*.png"):
        file.write_bytes(b"")


def _clear(folder: Path) -> None:
    for file in folder.rglob("images/*.png"):
        file.unlink()


INVALID: dict[str, tuple[Change, dict[str, Any], str]] = {
    "no folder of masks": (lambda root: (root / "masks").rename(root / "labels"), {}, "has no folder masks"),
    "no images": (_clear, {}, "images contains no readable file"),
    "names do not match": (_rename, {}, "no image in .* images are 000, 001, 002 and 7 more, masks are mask-000"),
    "two images with the same name": (
        lambda root: Image.new("RGB", (9, 9)).save(root / "images" / "004.jpg"),
        {},
        "004.jpg and .*004.png have the same name",
    ),
    "JPEG": (_to_jpeg, {}, "10 masks in .* are JPEG or WebP .*compression changes the values.*PNG"),
    "JPEG with another suffix": (_to_hidden_jpeg, {}, "it is a JPEG, whose compression changes the values"),
    "color": (_to_color, {}, "its mode is RGB; a mask has one integer per pixel"),
    "one class": (
        lambda root: _fill(root, 3),
        {},
        r"contain only the value 3 \(data.ignore=null\): at least two classes",
    ),
    "all ignored": (lambda root: _fill(root, 3), {"ignore": 3}, r"only ignored pixels \(data.ignore=3\)"),
    "zero length": (_empty, {}, "1 of 10 cannot be read .*000.png|of 10 cannot be read"),
    "none left": (_empty, {"max_unreadable": 1.0}, "no image of train can be used"),
    "no val": (lambda root: None, {"val_fraction": 0.01}, "data.val_fraction=0.01 of 10 images leaves one split empty"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_folder_is_an_error(tmp_path: Path, case: str) -> None:
    change, values, message = INVALID[case]
    root = make_folder(tmp_path / "own", 10)
    change(root)
    with pytest.raises(UserError, match=message):
        load(root, **values)


def test_missing_or_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no folder images"):
        load(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is a file"):
        load(tmp_path / "file")


def test_value_missing_in_train_is_an_error(tmp_path: Path) -> None:
    make_folder(tmp_path / "own" / "train", 4)
    make_folder(tmp_path / "own" / "val", 3, (0, 1, 9), first=4)
    with pytest.raises(
        UserError, match=r"validation mask .*val/masks/004.png has the value 9, which no training mask has"
    ):
        load(tmp_path / "own")
    assert len(load(tmp_path / "own", ignore=9).val) == 3
