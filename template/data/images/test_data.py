"""Image data: the digits, own folders, formats, augmentation, and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ..data import DataConfig, Images, Prepare, Spec, decode, load
from ..errors import UserError


def make_folder(root: Path, names: list[str], images: int) -> Path:
    """Make one subfolder of images per name, each with its own brightness."""
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True, exist_ok=True)
        for image in range(images):
            Image.new("RGB", (20, 30), (40 * number + 10, 0, image)).save(
                root / name / f"{image}.png"
            )
    return root


def brightness(split: Images) -> list[float]:
    images, labels = split.__getitems__(list(range(len(split))))
    return ((images[:, 0].float().mean((1, 2)) - 10) / 40 - labels).tolist()


def test_every_digit_is_in_one_split() -> None:
    train, val, spec = load(DataConfig())
    assert (len(train), len(val), spec.channels, spec.size, len(spec.classes)) == (
        1438,
        359,
        1,
        8,
        10,
    )
    assert not set(train.part.tolist()) & set(val.part.tolist())
    images, labels = train.__getitems__([5, 3])
    assert (images.dtype, images.shape, labels.dtype, labels.shape) == (
        torch.uint8,
        (2, 1, 8, 8),
        torch.int64,
        (2,),
    )


@pytest.mark.parametrize(
    "names", [["2", "10"], ["-1.5", "1e1"], ["10", "2", "inf"], ["1", "2", "nan"], ["B", "b"]]
)
def test_subfolders_are_classes_and_sort_as_numbers_if_all_are_finite(
    tmp_path: Path, names: list[str]
) -> None:
    train, val, spec = load(DataConfig(path=make_folder(tmp_path, names, 10), size=8))
    assert (len(train), len(val), spec.classes) == (8 * len(names), 2 * len(names), tuple(names))
    assert set(brightness(train) + brightness(val)) == {0.0}


def test_train_and_val_folders_are_the_splits(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", ["a", "b", "c"], 4)
    make_folder(tmp_path / "val", ["a", "b"], 1)
    make_folder(tmp_path / "test", ["a", "b"], 1)
    train, val, spec = load(DataConfig(path=tmp_path, size=8))
    assert (len(train), len(val), spec.classes) == (12, 2, ("a", "b", "c"))
    assert set(brightness(train) + brightness(val)) == {0.0}
    assert spec.mean[0] == pytest.approx(50 / 255)
    assert spec.std[0] == pytest.approx(40 * (2 / 3) ** 0.5 / 255)


def test_without_labels_no_subfolders_are_needed(tmp_path: Path) -> None:
    train, val, spec = load(
        DataConfig(path=make_folder(tmp_path, ["."], 5), size=8, labels=False, channels=1)
    )
    assert (len(train), len(val), len(spec.classes), spec.channels) == (4, 1, 1, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("suffix", "mode"), [("jpg", "RGB"), ("png", "RGBA"), ("png", "P"), ("tif", "L")]
)
def test_formats_are_decoded(tmp_path: Path, suffix: str, mode: str, channels: Any) -> None:
    Image.new("L", (40, 50), 100).convert(mode).save(tmp_path / f"grey.{suffix}")
    pixels = decode(tmp_path / f"grey.{suffix}", DataConfig(size=12, channels=channels))
    assert (pixels.shape, pixels.dtype) == ((channels, 12, 12), torch.uint8)
    assert (pixels.float() - 100).abs().max() <= 3


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    # white above
    image, exif = (
        Image.fromarray(np.full((8, 8), [[255]] * 4 + [[0]] * 4, np.uint8)),
        Image.Exif(),
    )
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    image.save(tmp_path / "a.png", exif=exif)
    assert decode(tmp_path / "a.png", DataConfig(size=8, channels=1))[0, :, 6:].min() == 255


@pytest.mark.parametrize("content", [b"", b"not an image", np.float32, np.int32, np.uint16])
def test_unreadable_image_is_named(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "a.tif"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        Image.fromarray(np.full((8, 8), 200, content)).save(file)
    with pytest.raises(UserError, match=r"^cannot read the image .*/a.tif \("):
        decode(file, DataConfig())


def test_unsuitable_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data.path=.*nowhere has 0 classes: give"):
        load(DataConfig(path=tmp_path / "nowhere"))
    with pytest.raises(UserError, match="has 1 classes"):
        load(DataConfig(path=make_folder(tmp_path, ["a"], 2)))


def test_augmentation_moves_pixels_in_training_only() -> None:
    images = torch.zeros(256, 1, 8, 8, dtype=torch.uint8)
    images[:, :, 3, 2] = 255
    prepare = Prepare(Spec(1, 8, ("a",), (0.0,), (1.0,)), DataConfig(shift=1, flip=True))
    assert torch.equal(prepare((images, images), False, torch.Generator())[0], images / 255)
    moved, _ = prepare((images, images), True, torch.Generator().manual_seed(0))
    assert len(moved.nonzero()[:, 2:].unique(dim=0)) == 3 * 6  # rows 2 to 4, columns 1 to 6
