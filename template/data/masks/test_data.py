"""Images and masks: the built-in canvases, augmentation, and your own folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data
from ..errors import UserError


def make_folder(root: Path, values: tuple[int, ...] = (0, 3, 7), count: int = 10) -> Path:
    """Make 40 x 40 images, whose pixels are 20 times their class, with their masks."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for number in range(count):
        classes = np.repeat(np.repeat(rng.integers(0, len(values), (8, 8)), 5, 0), 5, 1)
        Image.fromarray((classes * 20).astype(np.uint8)).convert("RGB").save(
            root / "images" / f"{number}.bmp"
        )
        Image.fromarray(np.asarray(values, np.uint8)[classes]).save(
            root / "masks" / f"{number}.png"
        )
    return root


def test_canvases_have_noise_digits_and_their_masks() -> None:
    train, val, spec = data.load(data.DataConfig())
    assert (len(train), len(val), spec.classes) == (
        1438 * 3 // 4,
        359 * 3 // 4,
        tuple(map(str, range(11))),
    )
    images, masks = train.__getitems__([*range(len(train))])
    assert (images.shape[1:], masks.shape[1:]) == ((1, 32, 32), (32, 32))
    assert images.dtype == masks.dtype == torch.uint8
    assert (images.squeeze(1)[masks > 0] >= 96).all()
    assert (images.squeeze(1)[masks == 0] >= 96).any(), "scrambled digits are as bright as digits"


@pytest.mark.parametrize(("shift", "flip"), [(3, False), (0, True), (3, True)])
def test_image_and_mask_are_augmented_alike(shift: int, flip: bool) -> None:
    spec = data.Spec(1, 16, ("a", "b"), (0.0,), (1.0,))
    masks = torch.randint(0, 200, (64, 16, 16), dtype=torch.uint8)
    prepare = data.Prepare(spec, data.DataConfig(shift=shift, flip=flip))
    images, moved = prepare((masks.unsqueeze(1), masks), True, torch.Generator().manual_seed(0))
    assert torch.equal((images[:, 0] * 255).round().long(), moved)
    unmoved = (moved == masks).flatten(1).all(1).sum().item()
    assert 0 <= unmoved < (50 if flip and not shift else 16)
    assert torch.equal(
        prepare((masks.unsqueeze(1), masks), False, torch.Generator())[1], masks.long()
    )


def test_own_images_and_masks_are_loaded(tmp_path: Path) -> None:
    train, val, spec = data.load(
        data.DataConfig(path=make_folder(tmp_path / "own"), size=40, ignore=7)
    )
    assert (len(train), len(val), spec.classes, spec.channels) == (8, 2, ("0", "3"), 3)
    images, masks = train.__getitems__([5, 0, 3])
    assert (images.shape, masks.shape) == ((3, 3, 40, 40), (3, 40, 40))
    assert masks.unique().tolist() == [0, 1, spec.ignored]
    expected = torch.where(masks == spec.ignored, 40, masks * 20)
    assert torch.equal(images, expected.unsqueeze(1).expand_as(images))


def save(array: Any) -> Callable[[Path], None]:
    return lambda file: Image.fromarray(array).save(file)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "images/3.bmp",
            lambda file: file.write_bytes(b"nonsense"),
            "cannot use .*3.bmp .*cannot identify",
        ),
        (
            "images/3.bmp",
            lambda file: file.write_bytes(file.read_bytes()[:90]),
            "cannot use .*3.bmp .*truncated",
        ),
        (
            "images/x.tif",
            save(np.zeros((40, 40), np.float32)),
            "cannot use .*x.tif .*modes F and L; save .* 8 bits",
        ),
        ("images/x.tif", save(np.zeros((40, 40), np.int32)), "cannot use .*x.tif .*modes I and L"),
        (
            "masks/3.png",
            save(np.zeros((40, 30), np.uint8)),
            r"has \(40, 40\) pixels, the mask \(30, 40\)",
        ),
        (
            "masks/3.png",
            save(np.zeros((40, 40, 3), np.uint8)),
            "3.png .*modes RGB and RGB; .*masks in L or P mode",
        ),
        ("masks/3.png", Path.unlink, "cannot use .*No such file .*masks/3.png"),
    ],
)
def test_unusable_file_is_named(
    tmp_path: Path, name: str, change: Callable[[Path], None], message: str
) -> None:
    root = make_folder(tmp_path / "own")
    Image.fromarray(np.zeros((40, 40), np.uint8)).save(root / "masks" / "x.png")
    change(root / name)
    with pytest.raises(UserError, match=message) as caught:
        data.load(data.DataConfig(path=root, size=16))
    assert "\n" not in str(caught.value)


def test_folder_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.path=.* has no image in its folder images"):
        data.load(data.DataConfig(path=tmp_path))
