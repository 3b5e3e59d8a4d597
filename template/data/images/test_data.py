"""Image data: the digits, your own folders, and augmentation."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from .. import data


def make_folder(
    root: Path,
    names: list[str],
    images: int,
) -> Path:
    """Make one subfolder of images per name, each image of another color."""
    for number, name in enumerate(names):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for image in range(images):
            color = (40 * number + 10, 0, image)
            picture = Image.new("RGB", (20, 30), color)
            picture.save(folder / f"{image}.png")
    return root


def brightness(split: data.Images) -> list[float]:
    """Return the number of its folder for each image, less its label."""
    indices = range(len(split))
    images, labels = split.__getitems__(list(indices))
    red = images[:, 0].float().mean((1, 2))
    numbers = (red - 10) / 40
    return (numbers - labels).tolist()


def test_the_digits_are_split() -> None:
    train, val, spec = data.load(data.DataConfig())
    assert len(train) == 1438
    assert len(val) == 359
    assert spec.size == 8
    assert spec.classes == tuple("0123456789")
    images, labels = train.__getitems__([5, 3])
    assert images.dtype == torch.uint8
    assert images.shape == (2, 1, 8, 8)
    assert labels.shape == (2,)


def test_folders_may_be_the_splits(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", ["a", "b", "c"], 4)
    make_folder(tmp_path / "val", ["a", "b"], 1)
    make_folder(tmp_path / "test", ["a", "b"], 3)
    cfg = data.DataConfig(path=tmp_path, size=8)
    train, val, spec = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    assert len(train) == 12
    assert len(val) == 2
    assert len(test) == 6
    assert {Path(str(file)).parts[-3] for file in test.images} == {"test"}
    assert set(brightness(test)) == {0.0}
    assert spec.classes == ("a", "b", "c")
    assert spec.mean[0] == pytest.approx(50 / 255)


def test_a_fraction_may_be_the_test_split(tmp_path: Path) -> None:
    path = make_folder(tmp_path, ["a", "b"], 20)
    cfg = data.DataConfig(
        path=path,
        size=8,
        test_fraction=0.25,
    )
    train, val, spec = data.load(cfg)
    test = data.load_test(cfg, spec)
    assert test
    images = {
        *train.images,
        *val.images,
        *test.images,
    }
    assert len(images) == 40
    assert data.load_test(data.DataConfig()) is None


def test_augmentation_moves_pixels_in_training_only() -> None:
    images = torch.zeros(
        256,
        1,
        8,
        8,
        dtype=torch.uint8,
    )
    images[:, :, 3, 2] = 255
    batch = (images, images)
    spec = data.Spec(
        1,
        8,
        ("a",),
        (0.0,),
        (1.0,),
    )
    prepare = data.Prepare(spec, data.DataConfig(shift=1, flip=True))
    unmoved, _ = prepare(batch, False, torch.Generator())
    assert torch.equal(unmoved, images / 255)
    moved, _ = prepare(batch, True, torch.Generator())
    places = moved.nonzero()[:, 2:].unique(dim=0)
    assert len(places) == 3 * 6  # rows 2 to 4, columns 1 to 6
