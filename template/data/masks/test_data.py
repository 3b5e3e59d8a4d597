"""Images and masks: the built-in canvases, augmentation, and your own folders."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data


def make_folder(
    root: Path,
    values: tuple[int, ...] = (0, 3, 7),
) -> Path:
    """Make ten 40 x 40 images, whose pixels are 20 times their class, with their masks."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for number in range(10):
        classes = rng.integers(
            0,
            len(values),
            (8, 8),
            np.uint8,
        )
        classes = classes.repeat(5, 0).repeat(5, 1)
        image = Image.fromarray(classes * 20).convert("RGB")
        mask = Image.fromarray(np.array(values, np.uint8)[classes])
        image.save(root / "images" / f"{number}.bmp")
        mask.save(root / "masks" / f"{number}.png")
    return root


def test_canvases_have_noise_digits_and_their_masks() -> None:
    train, val, spec = data.load(data.DataConfig())
    assert len(train) == 1438 * 3 // 4
    assert len(val) == 359 * 3 // 4
    assert spec.classes == tuple(map(str, range(11)))
    images, masks = train.tensors
    assert images.shape[1:] == (1, 32, 32)
    assert masks.shape[1:] == (32, 32)
    pixels = images.squeeze(1)
    assert pixels.dtype == masks.dtype == torch.uint8
    assert (pixels[masks > 0] >= 96).all()
    assert (pixels[masks == 0] >= 96).any(), "scrambled digits are as bright as digits"


@pytest.mark.parametrize(
    ("shift", "flip"),
    [
        (3, False),
        (0, True),
        (3, True),
    ],
)
def test_image_and_mask_are_augmented_alike(shift: int, flip: bool) -> None:
    spec = data.Spec(
        1,
        16,
        ("a", "b"),
        (0.0,),
        (1.0,),
    )
    masks = torch.randint(
        0,
        200,
        (64, 16, 16),
        dtype=torch.uint8,
    )
    batch = (masks.unsqueeze(1), masks)
    prepare = data.Prepare(spec, data.DataConfig(shift=shift, flip=flip))
    images, moved = prepare(batch, True, torch.Generator())
    pixels = images.squeeze(1) * 255
    assert torch.equal(pixels.round().long(), moved)
    assert not torch.equal(moved, masks.long())
    _, unmoved = prepare(batch, False, torch.Generator())
    assert torch.equal(unmoved, masks.long())


def test_own_images_and_masks_are_loaded(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "own")
    train, val, spec = data.load(
        data.DataConfig(
            path=path,
            size=40,
            ignore=7,
        )
    )
    assert len(train) + len(val) == 10
    assert spec.classes == ("0", "3")
    read, classes = data.describe(train, val, spec)
    assert read == "8 + 2 images with masks for training + validation"
    assert classes.startswith("2 classes with their shares of the training pixels: 0 (3")
    images, masks = train.__getitems__([5, 0, 3])
    assert images.shape == (3, 3, 40, 40)
    assert masks.unique().tolist() == [
        0,
        1,
        spec.ignored,
    ]
    expected = torch.where(
        masks == spec.ignored,
        40,
        masks * 20,
    )
    assert torch.equal(images[:, 0], expected)


def test_the_test_split_has_samples_of_its_own(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "own")
    cfg = data.DataConfig(
        path=path,
        size=8,
        test_fraction=0.3,
    )
    train, val, _ = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    splits = (train, val, test)
    images = torch.cat([split.tensors[0] for split in splits])
    assert len(images.unique(dim=0)) == 10
    assert data.load_test(data.DataConfig()) is None
