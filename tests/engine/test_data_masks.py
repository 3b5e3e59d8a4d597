"""Images and masks: the canvases' digits, statistics, and formats of your own images."""

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine import Package
from PIL import Image

MODEL = "unet"


def everything(split: Any) -> tuple[torch.Tensor, ...]:
    return tuple(split.__getitems__(list(range(len(split)))))


def digits_of(images: torch.Tensor, masks: torch.Tensor) -> set[bytes]:
    """Crops of the digits whose class occurs once on a canvas."""
    found = set()
    for image, mask in zip(
        images[:, 0],
        masks,
        strict=True,
    ):
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


def test_canvases_have_digits_of_their_own_split(p: Package) -> None:
    train, val, _ = p.data.load(p.data.DataConfig())
    digits = [digits_of(*everything(split)) for split in (train, val)]
    assert 1000 < len(digits[0]) < 1500, "from 1,438 digits, each on several canvases"
    assert len(digits[0] & digits[1]) < 0.01 * len(digits[1]), "only identical digits"


def test_brightness_does_not_separate_digits_from_background(p: Package) -> None:
    images, masks = everything(p.data.load(p.data.DataConfig())[1])
    digits = masks > 0
    overlaps = [
        ((images[:, 0] >= level) & digits).sum() / ((images[:, 0] >= level) | digits).sum()
        for level in range(256)
    ]
    assert max(overlaps) < 0.7


def test_shift_is_by_whole_pixels_and_replicates_the_edge(p: Package) -> None:
    masks = torch.zeros(64, 5, 5, dtype=torch.uint8)
    masks[:, 2, 2] = 1
    masks[:, 0] = 2
    prepare = p.data.Prepare(
        p.data.Spec(
            1,
            5,
            ("0", "1", "2"),
            (0.0,),
            (1.0,),
        ),
        p.data.DataConfig(shift=1),
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
    for number, (image, mask) in enumerate(
        zip(
            images,
            masks,
            strict=True,
        )
    ):
        image.save(root / "images" / "part" / f"{number}{suffix}")
        mask.save(root / "masks" / "part" / f"{number}.png")
    return root


def noise(
    count: int = 10, size: tuple[int, ...] = (20, 20)
) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size, np.uint8) for _ in range(count)]


def test_own_images_have_the_statistics_of_their_training_split(p: Package, tmp_path: Path) -> None:
    images = [Image.fromarray(pixels) for pixels in noise(size=(20, 20, 3))]
    masks = [Image.fromarray(pixels // 128) for pixels in noise()]
    cfg = p.data.DataConfig(
        path=make_folder(
            tmp_path / "own",
            images,
            masks,
        ),
        size=16,
    )
    train, val, spec = p.data.load(cfg)
    assert (len(train), len(val)) == (8, 2)
    prepared, _ = p.data.Prepare(spec, cfg)(
        everything(train),
        False,
        torch.Generator(),
    )
    assert prepared.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=1e-5)
    assert prepared.std((0, 2, 3), correction=0).tolist() == pytest.approx([1] * 3, abs=1e-5)


@pytest.mark.parametrize(
    ("mode", "classes"),
    [
        ("1", ("0", "1")),
        ("L", ("0", "255")),
        ("P", ("0", "2")),
    ],
)
def test_masks_may_be_bilevel_gray_or_palette_indices(
    p: Package, tmp_path: Path, mode: str, classes: tuple[str, ...]
) -> None:
    both = [pixels // 128 for pixels in noise()]
    if mode == "P":
        masks = [Image.fromarray(pixels * 2).convert("P") for pixels in both]
        for mask, pixels in zip(masks, both, strict=True):
            mask.putdata((pixels * 2).flatten().tolist())
            mask.putpalette([0, 0, 0, 250, 0, 0, 0, 250, 0])
    else:
        masks = [Image.fromarray(pixels * 255).convert(mode) for pixels in both]
    images = [Image.fromarray(pixels * 255) for pixels in both]
    cfg = p.data.DataConfig(
        path=make_folder(
            tmp_path / "own",
            images,
            masks,
        ),
        size=20,
    )
    train, _, spec = p.data.load(cfg)
    assert spec.classes == classes
    loaded, found = everything(train)
    assert torch.equal(loaded[:, 0] // 255, found)


def test_image_is_rotated_as_its_exif_data_says(p: Package, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    masks = [
        Image.fromarray(np.repeat(np.arange(2, dtype=np.uint8), 20)[:, None].repeat(20, 1))
        for _ in range(10)
    ]
    root = make_folder(
        tmp_path / "own",
        [Image.new("RGB", (40, 20))] * 10,
        masks,
        ".jpg",
    )
    with pytest.raises(
        p.errors.UserError, match=r"0.jpg has 40 x 20 pixels and its mask .* 20 x 40:"
    ):
        p.data.load(p.data.DataConfig(path=root, size=20))
    for file in (root / "images" / "part").iterdir():
        pixels = np.zeros((20, 40, 3), np.uint8)
        pixels[:, 20:] = 255  # the right half, and after the rotation the lower one
        Image.fromarray(pixels).save(file, exif=exif)
    loaded = p.data.load(p.data.DataConfig(path=root, size=20))
    images, masks_found = everything(loaded[0])
    assert torch.equal((images[:, 0] > 127).byte(), masks_found)
    said = "; 10 images are rotated by their EXIF orientation, and 0 masks: check them"
    assert p.data.describe(*loaded)[0].endswith(said)
    for file in (root / "masks" / "part").iterdir():
        Image.new("L", (40, 20)).save(file)
    message = "has 20 x 40 pixels, rotated by its EXIF orientation, and its mask .* 40 x 20: make"
    with pytest.raises(p.errors.UserError, match=message):
        p.data.load(p.data.DataConfig(path=root, size=20))


@pytest.mark.parametrize("fraction", [0.0001, 0.9999])
def test_empty_split_is_an_error(p: Package, fraction: float) -> None:
    with pytest.raises(p.errors.UserError, match="fewer than 2 of 1797 digits"):
        p.data.load(p.data.DataConfig(val_fraction=fraction))


def values(*pattern: int) -> Image.Image:
    """Return a mask of 16 x 16 pixels that repeats these values."""
    return Image.fromarray(np.resize(np.array(pattern, np.uint8), (16, 16)))


def make_pairs(root: Path, mask: Image.Image, count: int = 12, suffix: str = ".png") -> Path:
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for number in range(count):
        values(number).convert("RGB").save(root / "images" / f"{number}.png")
        mask.save(root / "masks" / f"{number}{suffix}")
    return root


def outcome(p: Any, root: Path, **options: Any) -> str:
    """Return how a folder is described, or why it is refused."""
    try:
        lines = p.data.describe(
            *p.data.load(
                p.data.DataConfig(
                    path=root,
                    size=16,
                    **options,
                )
            )
        )
    except p.errors.UserError as error:
        lines = [f"error: {error}"]
    assert not any("\n" in line for line in lines)
    return "\n".join(lines).replace(str(root), "ROOT")


SHARES = "2 classes with their shares of the training pixels"
MASKS: dict[str, tuple[Image.Image, str]] = {
    "two classes": (values(0, 0, 0, 7), f"{SHARES}: 0 (75%), 7 (25%)"),
    "palette": (values(0, 0, 0, 7).convert("P"), f"{SHARES}: 0 (75%), 7 (25%)"),
    "black and white": (values(0, 0, 0, 255).convert("1"), f"{SHARES}: 0 (75%), 1 (25%)"),
    "ignored": (values(0, 0, 7, 9), f"{SHARES}: 0 (50%), 7 (25%); 25% are ignored"),
    "64 classes": (
        values(*range(10, 74)),
        f"64{SHARES[1:]}: {', '.join(f'{value} (1.56%)' for value in range(10, 20))}, ...",
    ),
    "one class": (
        values(0),
        "error: the training masks of data.path=ROOT need two values or more besides "
        "data.ignore=9, and have 0 at data.size=16: correct the masks",
    ),
    "all ignored": (
        values(9),
        "error: the training masks of data.path=ROOT need two values or more besides "
        "data.ignore=9, and have none at data.size=16: correct the masks",
    ),
    "smoothed": (
        values(*range(256)),
        "error: the masks of data.path=ROOT have 255 values: save them without smoothed edges, "
        "or raise MAX_CLASSES in data.py",
    ),
    "RGB": (
        values(0, 1).convert("RGB"),
        "error: the mask ROOT/masks/0.png has pixels of the mode RGB: save it in grayscale with "
        "8 bits or with a palette, and a value per class",
    ),
    "16 bits": (
        Image.fromarray(np.zeros((16, 16), np.uint16)),
        "error: the mask ROOT/masks/0.png has pixels of the mode I;16: save it in grayscale with "
        "8 bits or with a palette, and a value per class",
    ),
    "other size": (
        values(0, 1).resize((8, 9)),
        "error: ROOT/images/0.png has 16 x 16 pixels and its mask ROOT/masks/0.png 8 x 9: "
        "make them equal",
    ),
}


@pytest.mark.parametrize(
    ("mask", "expected"),
    MASKS.values(),
    ids=MASKS,
)
def test_values_of_masks_are_understood_or_refused_in_one_line(
    p: Package, tmp_path: Path, mask: Image.Image, expected: str
) -> None:
    found = outcome(p, make_pairs(tmp_path, mask), ignore=9)
    assert found.removeprefix("10 + 2 images with masks for training + validation\n") == expected


PAIRS = "10 + 2 images with masks for training + validation"
FILES: dict[str, tuple[list[str], list[str], str]] = {
    "image without mask": (
        ["masks/3.png"],
        [],
        "error: ROOT/images/3.png has no mask ROOT/masks/3.png: add it, or remove the image",
    ),
    "mask without image": (
        ["images/3.png"],
        [],
        "error: the mask ROOT/masks/3.png has no image of the same name in ROOT/images: "
        "add it, or remove the mask",
    ),
    "image with two suffixes": (
        [],
        ["images/3.bmp"],
        "error: ROOT/images/3.bmp and ROOT/images/3.png differ only by their suffix: keep one",
    ),
    "mask with two suffixes": (
        [],
        ["masks/3.TIF"],
        "error: ROOT/masks/3.TIF and ROOT/masks/3.png differ only by their suffix: keep one",
    ),
    "JPEG mask": (
        ["masks/3.png"],
        ["masks/3.jpg"],
        "error: the mask ROOT/masks/3.jpg may have lost its exact values: save the masks as PNG",
    ),
    "empty image": (
        ["images/3.png"],
        ["images/3.png"],
        "error: cannot read the image ROOT/images/3.png (it is empty): replace or remove it",
    ),
    "empty mask": (
        ["masks/3.png"],
        ["masks/3.png"],
        "error: cannot read the image ROOT/masks/3.png (it is empty): replace or remove it",
    ),
    "other and hidden files": (
        [],
        ["images/x.heic", "masks/notes.txt", "images/._0.png", "masks/.ipynb_checkpoints/0.png"],
        f"{PAIRS}; 2 files left out (.heic, .txt)\n{SHARES}: 0 (75%), 7 (25%)",
    ),
    "no images": (
        [f"images/{number}.png" for number in range(12)],
        ["images/0.heic"],
        "error: ROOT/images has no images: give another data.path; 1 file left out (.heic)",
    ),
    "one pair": (
        [f"{kind}/{number}.png" for kind, number in product(("images", "masks"), range(1, 12))],
        [],
        "error: data.path=ROOT has 1 images for training and 0 for validation: "
        "add images, or change data.val_fraction",
    ),
}


@pytest.mark.parametrize(
    ("removed", "added", "expected"),
    FILES.values(),
    ids=FILES,
)
def test_files_are_pairs_or_refused_in_one_line(
    p: Package,
    tmp_path: Path,
    removed: list[str],
    added: list[str],
    expected: str,
) -> None:
    root = make_pairs(tmp_path, values(0, 0, 0, 7))
    for name in removed:
        (root / name).unlink()
    for name in added:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    assert outcome(p, root) == expected


def test_missing_folder_of_masks_is_one_line(p: Package, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    values(0).save(tmp_path / "images/0.png")
    assert (
        outcome(p, tmp_path)
        == "error: ROOT/masks does not exist: data.path needs the folders images and masks"
    )


def test_class_that_no_training_mask_has_is_named(p: Package, tmp_path: Path) -> None:
    root = make_pairs(tmp_path, values(0, 1), suffix=".bmp")
    for number in range(12):
        if p.image_files.place_of(str(number)) < 0.2:
            values(0, 9).save(root / "masks" / f"{number}.bmp")
    assert outcome(p, root).endswith("\nno training mask has these classes: 9")


def test_validation_without_a_pixel_that_counts_is_an_error(p: Package, tmp_path: Path) -> None:
    root = make_pairs(tmp_path, values(0, 1), suffix=".bmp")
    for number in range(12):
        if p.image_files.place_of(str(number)) < 0.2:
            values(9, 9).save(root / "masks" / f"{number}.bmp")
    assert "have no pixel that is not data.ignore=9: correct" in outcome(p, root, ignore=9)


def test_split_stays_when_pairs_come_and_go(p: Package, tmp_path: Path) -> None:
    cfg = p.data.DataConfig(
        path=make_pairs(tmp_path, values(0, 1), 40),
        size=16,
        test_fraction=0.2,
    )

    def numbers() -> list[set[int]]:
        splits = [*p.data.load(cfg)[:2], p.data.load_test(cfg)]
        return [set(split.tensors[0][:, 0, 0, 0].tolist()) for split in splits]

    whole = numbers()
    assert sorted(map(len, whole)) != [0, 0, 40]
    assert set.union(*whole) == set(range(40))
    for number in range(0, 40, 2):
        (tmp_path / f"images/{number}.png").unlink()
        (tmp_path / f"masks/{number}.png").unlink()
    assert numbers() == [split & set(range(1, 40, 2)) for split in whole]


@pytest.mark.parametrize(
    ("folders", "sizes"),
    [
        (("train", "Val"), (6, 6, 0)),
        (("train", "dev"), (6, 6, 0)),
        (("training", "testing"), (4, 2, 6)),
        (("train", "other"), (11, 1, 0)),
        (("train", "val", "extra"), (4, 4, 0)),
        (("train", "val", "."), (4, 4, 0)),
    ],
)
def test_folders_of_splits_are_the_splits(
    p: Package, tmp_path: Path, folders: tuple[str, ...], sizes: tuple[int, int, int]
) -> None:
    root = make_pairs(tmp_path, values(0, 1))
    for kind, number in product(("images", "masks"), range(12)):
        folder = root / kind / folders[number % len(folders)]
        folder.mkdir(exist_ok=True)
        (root / kind / f"{number}.png").rename(folder / f"{number}.png")
    cfg = p.data.DataConfig(path=root, size=16)
    train, val, spec = p.data.load(cfg)
    test = p.data.load_test(cfg) or ()
    assert (len(train), len(val), len(test)) == sizes
    said = "4 files left out (images in no folder of a split)"
    assert (said in p.data.describe(train, val, spec)[0]) == (sum(sizes) < 12)


def test_classes_are_those_of_the_run(p: Package, tmp_path: Path) -> None:
    first = make_pairs(tmp_path / "first", values(0, 3, 7))
    spec = p.data.load(p.data.DataConfig(path=first, size=16))[2]
    assert p.data.Spec(**dataclasses.asdict(spec)) == spec
    fewer = p.data.DataConfig(path=make_pairs(tmp_path / "fewer", values(0, 7)), size=16)
    train, val, kept = p.data.load(fewer, spec)
    assert kept is spec
    for split in (train, val):
        assert split.tensors[1].unique().tolist() == [0, 2]
    assert p.data.describe(train, val, spec)[-1] == "no training mask has these classes: 3"
    other = p.data.DataConfig(
        path=make_pairs(tmp_path / "other", values(0, 9)), size=16, test_fraction=0.4
    )
    for load in (p.data.load, p.data.load_test):
        with pytest.raises(
            p.errors.UserError, match=r"the value 9, which is not a class of this run"
        ):
            load(other, spec)
