"""Image data: digits of scikit-learn, file formats, folders of all shapes, and a batch in a run."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import datasets


def make_folder(root: Path, names: list[str], images: int) -> Path:
    """Make a folder of color noise, with one subfolder per class and a different brightness for each."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(images):
            pixels = rng.integers(40 * label, 40 * label + 40, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def test_digits_statistics_and_split_are_those_of_older_versions(
    package: Callable[[str], Any],
) -> None:
    p = package("resnet")
    train, val, spec = p.data.load(p.data.DataConfig())
    found = datasets.load_digits()
    expected = torch.from_numpy((found.images * (255 / 16)).round().astype(np.uint8)).unsqueeze(1)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    for split, rows in ((val, order[:359]), (train, order[359:])):
        images, labels = split.__getitems__(list(range(len(split))))
        assert torch.equal(images, expected[rows])
        assert torch.equal(labels, torch.from_numpy(found.target)[rows])
    levels = expected[order[359:]].long()
    mean = levels.sum().item() / levels.numel()
    std = math.sqrt((levels**2).sum().item() / levels.numel() - mean**2)
    assert [*spec.mean, *spec.std] == pytest.approx([mean / 255, std / 255], rel=1e-12)


def test_classes_are_sorted_as_numbers_or_text(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    p = package("resnet")
    for number, (names, expected) in enumerate(
        [
            (["10", "9"], ("9", "10")),
            (["1", "01", "0.5"], ("0.5", "01", "1")),
            (["9", "10", "x"], ("10", "9", "x")),
            (["-1.5", "1e1"], ("-1.5", "1e1")),
            (["10", "2", "inf"], ("10", "2", "inf")),
            (["1", "2", "nan"], ("1", "2", "nan")),
            (["b", "B"], ("B", "b")),
        ]
    ):
        path = make_folder(tmp_path / str(number), names, 4)
        assert p.data.load(p.data.DataConfig(path=path, size=8))[2].classes == expected


def test_hidden_files_other_files_and_images_in_no_class_are_left_out(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    p = package("resnet")
    root = make_folder(tmp_path, ["a", "b", ".cache"], 5)
    for name in ("a/.hidden.png", "a/notes.txt", "loose.png"):
        (root / name).write_text("not an image")
    train, val, spec = p.data.load(p.data.DataConfig(path=root, size=8))
    assert (len(train) + len(val), spec.classes) == (10, ("a", "b"))


def test_linked_class_folders_are_followed(package: Callable[[str], Any], tmp_path: Path) -> None:
    p = package("resnet")
    whole = make_folder(tmp_path / "whole", ["a", "b", "c"], 5)
    (tmp_path / "own").mkdir()
    for name in ("a", "c"):
        (tmp_path / "own" / name).symlink_to(whole / name)
    train, val, spec = p.data.load(p.data.DataConfig(path=tmp_path / "own", size=8))
    assert (len(train) + len(val), spec.classes) == (10, ("a", "c"))


def test_validation_classes_without_training_images_are_an_error(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    p = package("resnet")
    make_folder(tmp_path / "train", ["a", "b"], 2)
    make_folder(tmp_path / "val", ["a", "c"], 1)
    with pytest.raises(
        p.errors.UserError, match="has 3 classes: give a folder of training images per class"
    ):
        p.data.load(p.data.DataConfig(path=tmp_path, size=8))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("suffix", "mode"),
    [("bmp", "RGB"), ("gif", "P"), ("jpeg", "CMYK"), ("png", "LA"), ("tiff", "L"), ("webp", "RGB")],
)
def test_formats_are_decoded(
    package: Callable[[str], Any], tmp_path: Path, suffix: str, mode: str, channels: int
) -> None:
    p = package("resnet")
    Image.new("L", (40, 50), 100).convert("RGB").convert(mode).save(tmp_path / f"a.{suffix}")
    pixels = p.data.decode(tmp_path / f"a.{suffix}", p.data.DataConfig(size=12, channels=channels))
    assert (pixels.shape, pixels.dtype) == ((channels, 12, 12), torch.uint8)
    assert (pixels.float() - 100).abs().max() <= 3


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_image_of_16_bits_is_named(
    package: Callable[[str], Any], tmp_path: Path, suffix: str
) -> None:
    """With levels below 256, a division by 256 would make it black."""
    p = package("resnet")
    Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16)).save(tmp_path / f"a.{suffix}")
    with pytest.raises(
        p.errors.UserError, match=rf"^cannot read the image .*a.{suffix} \(.*: convert it to 8 bits"
    ):
        p.data.decode(tmp_path / f"a.{suffix}", p.data.DataConfig())


def test_truncated_image_is_named(package: Callable[[str], Any], tmp_path: Path) -> None:
    p = package("resnet")
    file = tmp_path / "a.png"
    Image.effect_noise((64, 64), 50).save(file)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(p.errors.UserError, match=r"^cannot read the image .*a.png \(.*truncated"):
        p.data.decode(file, p.data.DataConfig())


def test_prepare_gives_equal_batches_for_equal_generators(package: Callable[[str], Any]) -> None:
    p = package("resnet")
    train, _, spec = p.data.load(p.data.DataConfig())
    batch, prepare = (
        train.__getitems__(list(range(64))),
        p.data.Prepare(spec, p.data.DataConfig(flip=True, shift=2)),
    )
    first, again, other = (
        prepare(batch, True, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_statistics_of_large_images_are_of_four_million_pixels(
    package: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = package("resnet")
    root = make_folder(tmp_path, ["a", "b"], 10)
    decode = Mock(wraps=p.data.decode)
    monkeypatch.setattr(p.data, "decode", decode)
    p.data.load(p.data.DataConfig(path=root, size=1024))
    assert decode.call_count == 4  # of 16, with one million pixels each


@pytest.mark.parametrize("content", [b"", b"not an image", np.float32, np.int32, np.uint16])
def test_unreadable_image_is_named(
    package: Callable[[str], Any], tmp_path: Path, content: Any
) -> None:
    p = package("resnet")
    file = tmp_path / "a.tif"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        Image.fromarray(np.full((8, 8), 200, content)).save(file)
    with pytest.raises(p.errors.UserError, match=r"^cannot read the image .*/a.tif \("):
        p.data.decode(file, p.data.DataConfig())


def test_unsuitable_folder_is_an_error(package: Callable[[str], Any], tmp_path: Path) -> None:
    p = package("resnet")
    with pytest.raises(p.errors.UserError, match="data.path=.*nowhere has 0 classes: give"):
        p.data.load(p.data.DataConfig(path=tmp_path / "nowhere"))
    with pytest.raises(p.errors.UserError, match="has 1 classes"):
        p.data.load(p.data.DataConfig(path=make_folder(tmp_path, ["a"], 2)))


def test_exif_orientation_is_applied(package: Callable[[str], Any], tmp_path: Path) -> None:
    p = package("resnet")
    white_above = np.full((8, 8), [[255]] * 4 + [[0]] * 4, np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    Image.fromarray(white_above).save(tmp_path / "a.png", exif=exif)
    pixels = p.data.decode(tmp_path / "a.png", p.data.DataConfig(size=8, channels=1))
    assert pixels[0, :, 6:].min() == 255


def test_a_test_folder_may_have_no_class_of_its_own(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    """Training ignores the folder; only a request for the test split fails."""
    p = package("resnet")
    make_folder(tmp_path / "train", ["a", "b"], 2)
    make_folder(tmp_path / "val", ["a"], 1)
    make_folder(tmp_path / "test", ["unknown"], 1)
    cfg = p.data.DataConfig(path=tmp_path, size=8)
    assert p.data.load(cfg)[2].classes == ("a", "b")
    with pytest.raises(p.errors.UserError, match="class unknown, which has no training images"):
        p.data.load_test(cfg)
