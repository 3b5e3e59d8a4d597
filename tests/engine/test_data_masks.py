"""Images and masks: the canvases' digits, statistics, and formats of your own images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image


def everything(split: Any) -> tuple[torch.Tensor, ...]:
    return tuple(split.__getitems__(list(range(len(split)))))


def digits_of(images: torch.Tensor, masks: torch.Tensor) -> set[bytes]:
    """Crops of the digits whose class occurs once on a canvas."""
    found = set()
    for image, mask in zip(images[:, 0], masks, strict=True):
        for label in mask.unique().tolist()[1:]:
            rows, columns = (mask == label).nonzero(as_tuple=True)
            box = (
                slice(int(rows.min()), int(rows.max()) + 1),
                slice(int(columns.min()), int(columns.max()) + 1),
            )
            crop = image[box] * (mask[box] == label)
            if max(crop.shape) <= 8:
                found.add(bytes([label, crop.shape[1]]) + bytes(crop.flatten().tolist()))
    return found


def test_canvases_have_digits_of_their_own_split(package: Callable[[str], Any]) -> None:
    p = package("unet")
    train, val, _ = p.data.load(p.data.DataConfig())
    digits = [digits_of(*everything(split)) for split in (train, val)]
    assert 1000 < len(digits[0]) < 1500, "from 1,438 digits, each on several canvases"
    assert len(digits[0] & digits[1]) < 0.01 * len(digits[1]), "only identical digits"


def test_brightness_does_not_separate_digits_from_background(package: Callable[[str], Any]) -> None:
    p = package("unet")
    images, masks = everything(p.data.load(p.data.DataConfig())[1])
    digits = masks > 0
    overlaps = [
        ((images[:, 0] >= level) & digits).sum() / ((images[:, 0] >= level) | digits).sum()
        for level in range(256)
    ]
    assert max(overlaps) < 0.7


def test_shift_is_by_whole_pixels_and_replicates_the_edge(package: Callable[[str], Any]) -> None:
    p = package("unet")
    masks = torch.zeros(64, 5, 5, dtype=torch.uint8)
    masks[:, 2, 2], masks[:, 0] = 1, 2
    prepare = p.data.Prepare(
        p.data.Spec(1, 5, ("0", "1", "2"), (0.0,), (1.0,)), p.data.DataConfig(shift=1)
    )
    shifted = prepare((masks.unsqueeze(1), masks), True, torch.Generator().manual_seed(0))[1]
    positions = (shifted == 1).flatten(1).float().argmax(1)
    assert set((positions // 5).tolist()) == set((positions % 5).tolist()) == {1, 2, 3}
    assert sorted(set((shifted == 2).sum((1, 2)).tolist())) == [0, 5, 10]


def make_folder(
    root: Path, images: list[Image.Image], masks: list[Image.Image], suffix: str = ".png"
) -> Path:
    for kind in ("images", "masks"):
        (root / kind / "part").mkdir(parents=True)
    for number, (image, mask) in enumerate(zip(images, masks, strict=True)):
        image.save(root / "images" / "part" / f"{number}{suffix}")
        mask.save(root / "masks" / "part" / f"{number}.png")
    return root


def noise(
    count: int = 10, size: tuple[int, ...] = (20, 20)
) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size, np.uint8) for _ in range(count)]


def test_own_images_have_the_statistics_of_their_training_split(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    p = package("unet")
    images = [Image.fromarray(pixels) for pixels in noise(size=(20, 20, 3))]
    masks = [Image.fromarray(pixels // 128) for pixels in noise()]
    cfg = p.data.DataConfig(path=make_folder(tmp_path / "own", images, masks), size=16)
    train, val, spec = p.data.load(cfg)
    assert (len(train), len(val)) == (8, 2)
    prepared, _ = p.data.Prepare(spec, cfg)(everything(train), False, torch.Generator())
    assert prepared.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=1e-5)
    assert prepared.std((0, 2, 3), correction=0).tolist() == pytest.approx([1] * 3, abs=1e-5)


@pytest.mark.parametrize(
    ("mode", "classes"), [("1", ("0", "1")), ("L", ("0", "255")), ("P", ("0", "2"))]
)
def test_masks_may_be_bilevel_gray_or_palette_indices(
    package: Callable[[str], Any], tmp_path: Path, mode: str, classes: tuple[str, ...]
) -> None:
    p = package("unet")
    both = [pixels // 128 for pixels in noise()]
    if mode == "P":
        masks = [Image.fromarray(pixels * 2).convert("P") for pixels in both]
        for mask, pixels in zip(masks, both, strict=True):
            mask.putdata((pixels * 2).flatten().tolist())
            mask.putpalette([0, 0, 0, 250, 0, 0, 0, 250, 0])
    else:
        masks = [Image.fromarray(pixels * 255).convert(mode) for pixels in both]
    images = [Image.fromarray(pixels * 255) for pixels in both]
    cfg = p.data.DataConfig(path=make_folder(tmp_path / "own", images, masks), size=20)
    train, _, spec = p.data.load(cfg)
    assert spec.classes == classes
    loaded, found = everything(train)
    assert torch.equal(loaded[:, 0] // 255, found)


def test_image_is_rotated_as_its_exif_data_says(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    p = package("unet")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    masks = [
        Image.fromarray(np.repeat(np.arange(2, dtype=np.uint8), 20)[:, None].repeat(20, 1))
        for _ in range(10)
    ]
    root = make_folder(tmp_path / "own", [Image.new("RGB", (40, 20))] * 10, masks, ".jpg")
    with pytest.raises(
        p.errors.UserError, match=r"the image has \(40, 20\) pixels, the mask \(20, 40\)"
    ):
        p.data.load(p.data.DataConfig(path=root, size=20))
    for file in (root / "images" / "part").iterdir():
        pixels = np.zeros((20, 40, 3), np.uint8)
        pixels[:, 20:] = 255  # the right half, and after the rotation the lower one
        Image.fromarray(pixels).save(file, exif=exif)
    images, masks_found = everything(p.data.load(p.data.DataConfig(path=root, size=20))[0])
    assert torch.equal((images[:, 0] > 127).byte(), masks_found)


@pytest.mark.parametrize("fraction", [0.0001, 0.9999])
def test_empty_split_is_an_error(package: Callable[[str], Any], fraction: float) -> None:
    p = package("unet")
    with pytest.raises(p.errors.UserError, match="is too small a split: add images"):
        p.data.load(p.data.DataConfig(val_fraction=fraction))


def test_unusable_file_is_named(package: Callable[[str], Any], tmp_path: Path) -> None:
    p = package("unet")
    with pytest.raises(
        p.errors.UserError, match=r"data\.path=.* has no image in its folder images"
    ):
        p.data.load(p.data.DataConfig(path=tmp_path))
    images = [Image.fromarray(pixels) for pixels in noise(size=(40, 40))]
    cfg = p.data.DataConfig(path=make_folder(tmp_path / "own", images, images), size=16)
    image = tmp_path / "own/images/part/3.png"
    mask = tmp_path / "own/masks/part/3.png"

    def expect(message: str) -> None:
        with pytest.raises(p.errors.UserError, match=message) as caught:
            p.data.load(cfg)
        assert "\n" not in str(caught.value)

    Image.new("L", (40, 30)).save(mask)
    expect(r"has \(40, 40\) pixels, the mask \(40, 30\)")
    Image.new("RGB", (40, 40)).save(mask)
    expect("3.png .*modes L and RGB; .*masks in L or P mode")
    mask.unlink()
    expect("cannot use .*No such file .*masks/part/3.png")
    Image.new("L", (40, 40)).save(mask)
    content = image.read_bytes()
    image.write_bytes(content[:90])
    expect("cannot use .*3.png .*truncated")
    image.write_bytes(b"nonsense")
    expect("cannot use .*3.png .*cannot identify")
    for dtype, mode in ((np.float32, "F"), (np.int32, "I")):
        other = tmp_path / "own/images/part/3.tif"
        image.unlink(missing_ok=True)
        Image.fromarray(np.zeros((40, 40), dtype)).save(other)
        expect(f"cannot use .*3.tif .*modes {mode} and L; save .* 8 bits")
