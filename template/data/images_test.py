"""Images: what is loaded, what happens on the device, and what a bad folder gives."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data
from ..errors import UserError


def folder_of(root: Path, classes: int, images: int) -> Path:
    """Make a folder of coloured noise, one sub-folder a class."""
    noise = np.random.default_rng(0)
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(images):
            pixels = noise.integers(0, 256, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{number}.png")
    return root


def test_the_digits_are_all_there_once() -> None:
    found = data.load(data.DataConfig())
    assert len(found.train) + len(found.val) == 1797
    assert (found.spec.channels, found.spec.size, len(found.spec.classes)) == (1, 8, 10)
    images, labels = found.train.__getitems__([5, 3])
    assert (images.dtype, images.shape, labels.shape) == (torch.uint8, (2, 1, 8, 8), (2,))
    train = {bytes(image.numpy()) for image in found.train.__getitems__(list(range(len(found.train))))[0]}
    assert len(train) > 1400


def test_preparing_normalises_and_only_training_moves() -> None:
    cfg = data.DataConfig()
    found = data.load(cfg)
    batch = found.train.__getitems__(list(range(len(found.train))))
    prepare = data.Prepare(found.spec, cfg)
    still, _ = prepare(batch, False, torch.default_generator)
    assert still.mean().item() == pytest.approx(0, abs=1e-4)
    assert still.std().item() == pytest.approx(1, abs=1e-4)
    moved, again = (prepare(batch, True, torch.Generator().manual_seed(1))[0] for _ in range(2))
    assert torch.equal(moved, again)
    assert not torch.equal(moved, still)


def test_a_shift_moves_whole_images_by_whole_pixels() -> None:
    images = torch.zeros(64, 1, 5, 5)
    images[:, :, 2, 2] = 1
    places = data.shift(images, 1, torch.Generator().manual_seed(0)).flatten(1).argmax(1)
    rows, columns = places // 5, places % 5
    assert set(rows.tolist()) == set(columns.tolist()) == {1, 2, 3}


def test_a_folder_of_images(tmp_path: Path) -> None:
    found = data.load(data.DataConfig(path=folder_of(tmp_path, 3, 10), size=16))
    assert (len(found.train), len(found.val)) == (24, 6)
    assert found.spec.classes == ("class0", "class1", "class2")
    images, labels = found.val.__getitems__([0, 1, 2])
    assert images.shape == (3, 3, 16, 16)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize(("classes", "images", "message"), [(0, 0, "fewer than two"), (1, 5, "fewer than two")])
def test_too_few_classes(tmp_path: Path, classes: int, images: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        data.load(data.DataConfig(path=folder_of(tmp_path, classes, images)))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        data.load(data.DataConfig(path=tmp_path / "nowhere"))


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path, 2, 4)
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(UserError, match="cannot read the image .*png"):
        data.load(data.DataConfig(path=tmp_path))
