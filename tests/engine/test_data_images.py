"""Image data: digits of scikit-learn, file formats, folders of all shapes, and a batch in a run."""

import dataclasses
import math
import os
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from engine import Package
from PIL import Image, ImageEnhance, ImageOps
from sklearn import datasets

MODEL = "resnet"


def make_folder(
    root: Path,
    names: list[str],
    images: int,
) -> Path:
    """Make a folder of color noise, with a subfolder of another brightness per class."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(images):
            pixels = rng.integers(
                40 * label,
                40 * label + 40,
                (20, 30, 3),
                np.uint8,
            )
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def test_digits_statistics_and_split_are_those_of_older_versions(
    p: Package,
) -> None:
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


def test_classes_are_sorted_as_numbers_or_text(p: Package, tmp_path: Path) -> None:
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
    p: Package, tmp_path: Path
) -> None:
    root = make_folder(tmp_path, ["a", "b", ".cache"], 5)
    for name in ("a/.hidden.png", "a/notes.txt", "loose.png"):
        (root / name).write_text("not an image")
    train, val, spec = p.data.load(p.data.DataConfig(path=root, size=8))
    assert (len(train) + len(val), spec.classes) == (10, ("a", "b"))


def test_linked_class_folders_are_followed(p: Package, tmp_path: Path) -> None:
    whole = make_folder(tmp_path / "whole", ["a", "b", "c"], 5)
    (tmp_path / "own").mkdir()
    for name in ("a", "c"):
        (tmp_path / "own" / name).symlink_to(whole / name)
    train, val, spec = p.data.load(p.data.DataConfig(path=tmp_path / "own", size=8))
    assert (len(train) + len(val), spec.classes) == (10, ("a", "c"))


@pytest.mark.timeout(60)
def test_pipe_in_a_folder_is_not_read(p: Package, tmp_path: Path) -> None:
    root = make_folder(tmp_path, ["a", "b"], 5)
    os.mkfifo(root / "a/pipe.png")
    train, val, _ = p.data.load(p.data.DataConfig(path=root, size=8))
    assert len(train) + len(val) == 10


def make_tree(root: Path, names: list[str]) -> Path:
    """Make tiny images, and other files, which are empty.

    `a -> b` is a link to b, below the root.
    """
    for number, name in enumerate(names):
        place, _, linked = name.partition(" -> ")
        file = root / place
        file.parent.mkdir(parents=True, exist_ok=True)
        if linked:
            file.symlink_to(root / linked)
        elif file.suffix.lower() in {".jpg", ".png"}:
            Image.new("RGB", (4, 4), (number, 0, 0)).save(file, "PNG")
        else:
            file.touch()
    return root


def eight(*folders: str) -> list[str]:
    return [f"{folder}/{number}.png" for folder, number in product(folders, range(8))]


def outcome(p: Any, root: Path, **options: Any) -> str:
    """Return how a folder is described, or why it is refused."""
    try:
        lines = p.data.describe(
            *p.data.load(
                p.data.DataConfig(
                    path=root,
                    size=4,
                    **options,
                )
            )
        )
    except p.errors.UserError as error:
        lines = [f"error: {error}"]
    assert not any("\n" in line for line in lines)
    return "\n".join(lines).replace(str(root), "ROOT").replace(" for training + validation", "")


TWO = eight("a", "b")
HOSTILE = {
    "two classes": (TWO, "2 classes: a (7 + 1), b (7 + 1)"),
    "splits in upper case": (
        eight("Train/a", "Train/b", "VAL/a", "VAL/b"),
        "2 classes: a (8 + 8), b (8 + 8)",
    ),
    "valid": (eight("train/a", "train/b", "valid/a", "valid/b"), "2 classes: a (8 + 8), b (8 + 8)"),
    "one class in validation": (
        eight("train/a", "train/b", "Validation/a"),
        "2 classes: a (8 + 8), b (8 + 0)\nall validation images are of the class a",
    ),
    "no validation": (eight("train/a", "train/b", "test/a"), "2 classes: a (5 + 3), b (7 + 1)"),
    "training and testing": (
        eight("Training/a", "Training/b", "Testing/a"),
        "2 classes: a (6 + 2), b (5 + 3)",
    ),
    "two folders for validation": (
        eight("train/a", "train/b", "val/a", "valid/a"),
        "error: data.path=ROOT has two folders for val, such as valid: keep one",
    ),
    "class of validation only": (
        eight("train/a", "train/b", "val/c"),
        "error: ROOT/val/c/0.png is of the class c, of which the run has no training images: "
        "remove it, or add training images for a new run",
    ),
    "beside the splits": (
        [*eight("train/a", "train/b", "val/a", "val/b"), "more/a/0.png", "0.png"],
        "2 classes: a (8 + 8), b (8 + 8); 2 files left out (images in no class folder)",
    ),
    "splits of other names": (
        eight("train/a", "train/b", "holdout/a"),
        "error: data.path=ROOT has the folder train with subfolders, as if it were a split: "
        "name the folders of the splits train, val and test, or rename the class",
    ),
    "splits within classes": (
        eight("a/train", "a/val", "b/train", "b/val"),
        "error: data.path=ROOT has splits within the folder a: put the classes into folders train "
        "and val, or give one folder per class",
    ),
    "parts of names are those of splits": (
        eight("my_Train-1/a", "my_Train-1/b", "my_Test-1/a"),
        "error: data.path=ROOT has the folder my_Test-1 with subfolders, as if it were a split: "
        "name the folders of the splits train, val and test, or rename the class",
    ),
    "splits in folders of their own": (
        eight("seg_train/seg_train/a", "seg_test/seg_test/a"),
        "error: data.path=ROOT has the folder seg_test with subfolders, as if it were a split: "
        "name the folders of the splits train, val and test, or rename the class",
    ),
    "class with the name of a split": (
        eight("training bus/city", "steam train/old", "tram"),
        "3 classes: steam train (7 + 1), training bus (5 + 3), tram (7 + 1); "
        "classes with subfolders: steam train, training bus",
    ),
    "splits with such a class": (
        eight("train/train/old", "train/bus/old", "val/train/old", "val/bus/old"),
        "2 classes: bus (8 + 8), train (8 + 8); classes with subfolders: bus, train",
    ),
    "train is a class": (eight("train", "bus"), "2 classes: bus (6 + 2), train (6 + 2)"),
    "class of one image": (
        ["a/0.png", *eight("b")],
        "2 classes: a (1 + 0), b (7 + 1)\nall validation images are of the class b",
    ),
    "one class": (
        eight("a"),
        "error: data.path=ROOT has only one class, a: "
        "give a folder with a subfolder of images per class",
    ),
    "classes one level deeper": (
        eight("photos/a", "photos/b"),
        "error: data.path=ROOT has only one class, photos: "
        "give a folder with a subfolder of images per class; classes with subfolders: photos",
    ),
    "no class folders": (
        eight("."),
        "error: data.path=ROOT has no images: give a folder with a subfolder of images per class; "
        "8 files left out (images in no class folder)",
    ),
    "no images": (
        ["a/0.heic", "b/0.heic"],
        "error: data.path=ROOT has no images: give a folder with a subfolder of images per class; "
        "2 files left out (.heic)",
    ),
    "one image each": (
        ["a/0.png", "b/0.png"],
        "error: data.path=ROOT has no validation images, and 2 for training: "
        "add images, or change data.val_fraction",
    ),
    "other files": (
        [*TWO, "a/0.HEIC", "b/0.heic", "README", "0.png"],
        "2 classes: a (7 + 1), b (7 + 1); "
        "4 files left out (.heic, images in no class folder, no suffix)",
    ),
    "hidden files and those of the system": (
        [
            *TWO,
            "a/._0.png",
            "__MACOSX/a/0.png",
            "@eaDir/a/0.png",
            "a/@eaDir/0.png",
            "a/.ipynb_checkpoints/0.png",
            ".DS_Store",
            "Thumbs.db",
        ],
        "2 classes: a (7 + 1), b (7 + 1)",
    ),
    "links to folders above": (
        [*TWO, "a/up -> .", "b/loop -> b"],
        "2 classes: a (7 + 1), b (7 + 1)",
    ),
    "links in a circle": (
        [*TWO, "a/x/0.png", "a/y/0.png", "a/x/to_y -> a/y", "a/y/to_x -> a/x"],
        "2 classes: a (11 + 1), b (7 + 1); classes with subfolders: a",
    ),
    "folders of several depths": (
        eight("a/x", "b"),
        "2 classes: a (7 + 1), b (7 + 1); classes with subfolders: a",
    ),
    "names that differ by case and blanks": (
        eight("Cat", "cat ", "dog"),
        "3 classes: Cat (6 + 2), cat  (6 + 2), dog (6 + 2)\n"
        "classes that differ only by case or blanks: Cat, cat ",
    ),
    "many classes": (eight(*"abcdefghijk"), "11 classes, 69 + 19 images"),
}


@pytest.mark.parametrize(
    ("names", "expected"),
    HOSTILE.values(),
    ids=HOSTILE,
)
def test_folder_is_understood_or_refused_in_one_line(
    p: Package, tmp_path: Path, names: list[str], expected: str
) -> None:
    assert outcome(p, make_tree(tmp_path, names)) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (eight(".", "a"), "12 + 4 images"),
        (eight("train", "train/a", "val"), "16 + 8 images"),
        (["0.png"], "error: data.path=ROOT has no validation images, and 1 for training: add"),
        (
            ["0.txt"],
            "error: data.path=ROOT has no images: give a folder with images; 1 file left out",
        ),
    ],
)
def test_folder_without_labels(
    package: Callable[[str], Any], tmp_path: Path, names: list[str], expected: str
) -> None:
    found = outcome(
        package("vae"),
        make_tree(tmp_path, names),
        labels=False,
    )
    assert found.startswith(expected)


@pytest.mark.parametrize("model", ["resnet", "unet"])
def test_path_that_is_no_folder_is_one_line(
    package: Callable[[str], Any], tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = package(model)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(make_tree(tmp_path, ["file.txt", "empty/a/0.txt"]))
    for path, message in (
        ("", "data.path is empty, or the current folder: give the folder's name"),
        (".", "data.path is empty, or the current folder: give the folder's name"),
        ("nowhere", "data.path=nowhere does not exist: give a folder of images"),
        ("~/file.txt", f"data.path={tmp_path}/file.txt is a file: give a folder of images"),
        ("~nobody-here", "data.path=~nobody-here does not exist: give a folder of images"),
        ("~/empty", "empty"),
    ):
        with pytest.raises(p.errors.UserError) as caught:
            p.data.load(p.data.DataConfig(path=Path(path)))
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_home_is_the_folder_of_its_name(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(make_tree(tmp_path, TWO)))
    assert outcome(p, Path("~")) == "2 classes: a (7 + 1), b (7 + 1)"


def names_in(split: Any) -> set[str]:
    return {"/".join(file.parts[-2:]) for file in split.images}


def test_split_stays_when_images_come_and_go(p: Package, tmp_path: Path) -> None:
    names = [f"{name}/{number}.png" for name, number in product("ab", range(40))]
    splits = []
    for number, some in enumerate(
        [
            names,
            names[::2],
            [*names, *eight("c")],
        ]
    ):
        root = make_tree(tmp_path / str(number), some)
        cfg = p.data.DataConfig(
            path=root,
            size=4,
            test_fraction=0.2,
        )
        train, val, _ = p.data.load(cfg)
        splits.append([names_in(split) for split in (train, val, p.data.load_test(cfg))])
        assert sorted(set.union(*splits[-1])) == sorted(some)
    for whole, half, more in zip(*splits, strict=True):
        assert whole & set(names[::2]) == half
        assert whole == more & set(names)


def test_classes_are_those_of_the_run(p: Package, tmp_path: Path) -> None:
    """Labels and statistics stay, also if a folder is missing; a new or renamed one is named."""
    root = make_tree(tmp_path, eight("a", "b", "c"))
    cfg = p.data.DataConfig(
        path=root,
        size=4,
        test_fraction=0.2,
    )
    spec = p.data.load(cfg)[2]
    assert p.data.Spec(**dataclasses.asdict(spec)) == spec
    (root / "a").rename(tmp_path.parent / "elsewhere")
    train, val, kept = p.data.load(cfg, spec)
    assert kept is spec
    for split in (train, val, p.data.load_test(cfg, spec)):
        labels = [spec.classes.index(file.parent.name) for file in split.images]
        assert split.labels.tolist() == labels
    assert p.data.describe(train, val, spec)[0].startswith("3 classes: a (0 + 0), b (")
    (root / "b").rename(root / "new")
    with pytest.raises(p.errors.UserError, match=r"/new/\d.png is of the class new, of which"):
        p.data.load(cfg, spec)


def decoded(p: Any, file: Path, channels: int = 3) -> torch.Tensor:
    """Decode a file to 16 x 16 pixels as `data.py` of images or of masks does."""
    pixels = p.image_files.read_image(
        file,
        p.data.Spec(
            channels,
            16,
            ("a", "b"),
            (0.0,),
            (1.0,),
        ),
    )
    assert (pixels.shape, pixels.dtype) == ((channels, 16, 16), torch.uint8)
    return torch.as_tensor(pixels, dtype=torch.float32)


@pytest.mark.parametrize("model", ["resnet", "unet"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("suffix", "mode"),
    [
        ("bmp", "RGB"),
        ("gif", "P"),
        ("jpeg", "CMYK"),
        ("pgm", "L"),
        ("png", "LA"),
        ("png", "RGBA"),
        ("ppm", "RGB"),
        ("tiff", "L"),
        ("webp", "RGB"),
    ],
)
def test_formats_are_decoded(
    package: Callable[[str], Any],
    tmp_path: Path,
    suffix: str,
    mode: str,
    channels: int,
    model: str,
) -> None:
    file = tmp_path / f"a.{suffix}"
    Image.new("L", (40, 50), 100).convert("RGB").convert(mode).save(file)
    assert (decoded(package(model), file, channels) - 100).abs().max() <= 4


@pytest.mark.parametrize("model", ["resnet", "unet"])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "colors"])
def test_transparent_pixels_are_white(
    package: Callable[[str], Any], tmp_path: Path, mode: str, model: str
) -> None:
    """Their color is often black, so that a black drawing would vanish."""
    drawing = Image.new(
        "RGBA",
        (16, 16),
        (0, 0, 0, 0),
    )
    drawing.paste((0, 0, 0, 255), (4, 4, 12, 12))
    if mode == "P":  # two indices, both black
        indices = Image.fromarray((np.array(drawing)[:, :, 3] // 255).astype(np.uint8))
        indices.putpalette([0] * 6)
        indices.save(tmp_path / "a.png", transparency=bytes([0, 255]))
    elif mode == "colors":  # of a pixel, here of the blue around
        other = Image.new(
            "RGB",
            (16, 16),
            (0, 0, 255),
        )
        other.paste((0, 0, 0), (4, 4, 12, 12))
        other.save(tmp_path / "a.png", transparency=(0, 0, 255))
    else:
        drawing.convert(mode).save(tmp_path / "a.png")
    expected = torch.full((3, 16, 16), 255.0)
    expected[:, 4:12, 4:12] = 0
    assert torch.equal(decoded(package(model), tmp_path / "a.png"), expected)


def make_icons(root: Path, color: str, mode: str = "RGBA", count: int = 24) -> Path:
    """Make icons of one color: bars whose direction, the class, is in the alpha channel only."""
    for number in range(count):
        alpha = np.zeros((16, 16), np.uint8)
        alpha[4 + number % 7 : 7 + number % 7, 2:14] = 255
        name = "ab"[number % 2]
        icon = Image.new("RGB", (16, 16), color)
        icon.putalpha(Image.fromarray(alpha if name == "a" else alpha.T))
        (root / name).mkdir(parents=True, exist_ok=True)
        icon.convert(mode).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize(
    ("color", "keys", "shown"),
    [
        ("black", {}, "transparent pixels are white (data.background)"),
        ("white", {"background": "#000"}, "transparent pixels are #000 (data.background)"),
        ("white", {"channels": 4}, "transparent pixels are kept"),
        ("black", {"channels": 1}, "transparent pixels are white (data.background)"),
    ],
)
def test_shapes_in_the_alpha_channel_are_seen(
    p: Package,
    tmp_path: Path,
    color: str,
    keys: dict[str, Any],
    shown: str,
    mode: str,
) -> None:
    root = make_icons(tmp_path, color, mode)
    cfg = p.data.DataConfig(path=root, size=16, **keys)
    train, val, spec = p.data.load(cfg)
    assert p.data.describe(train, val, spec)[0].endswith(f"; {shown}")
    images, labels = train.__getitems__(list(range(len(train))))
    images = images[:, -1].float()
    is_row = images.var(1).sum(1) > images.var(2).sum(1)
    assert torch.equal(is_row, labels == 0)
    assert torch.equal(
        p.image_files.read_image(root / "a/0.png", spec),
        p.image_files.read_image(root / "a/0.png", cfg),
    ), "predictions see the same"


@pytest.mark.parametrize("model", ["resnet", "unet"])
def test_icons_that_vanish_on_the_background_are_one_line(
    package: Callable[[str], Any], tmp_path: Path, model: str
) -> None:
    p = package(model)
    root = make_icons(tmp_path / ("images" if model == "unet" else ""), "white")
    if model == "unet":
        for file in find_icons(root):
            mask = tmp_path / "masks" / file.relative_to(root)
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.open(file).getchannel("A").save(mask)
    with pytest.raises(p.errors.UserError, match="blank on white: set data.background to another"):
        p.data.load(p.data.DataConfig(path=tmp_path, size=16))
    cfg = p.data.DataConfig(
        path=tmp_path,
        size=16,
        background="black",
    )
    sets = p.data.load(cfg)
    assert "transparent pixels are black (data.background)" in p.data.describe(*sets)[0]
    with pytest.raises(
        p.errors.UserError, match="data.background is no: it is no color: give white"
    ):
        p.data.DataConfig(background="no")
    with pytest.raises(p.errors.UserError, match="data.test_fraction is 0.6: with data.val_frac"):
        p.data.DataConfig(val_fraction=0.4, test_fraction=0.6)


def test_images_that_are_only_transparent_are_one_line(p: Package, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(10):
            empty = Image.new("RGBA", (8, 8), (number, 0, 0, 0))
            empty.save(tmp_path / name / f"{number}.png")
    with pytest.raises(p.errors.UserError, match="are blank on white: .* or remove them"):
        p.data.load(p.data.DataConfig(path=tmp_path, size=8))


def find_icons(root: Path) -> list[Path]:
    return sorted(root.rglob("*.png"))


@pytest.mark.parametrize("suffix", ["gif", "png", "tif", "webp"])
def test_first_frame_is_decoded(p: Package, tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in ("black", "white")]
    frames[0].save(
        tmp_path / f"a.{suffix}",
        save_all=True,
        append_images=frames[1:],
    )
    assert decoded(p, tmp_path / f"a.{suffix}").max() <= 3


def whole_png() -> bytes:
    stream = BytesIO()
    Image.effect_noise((64, 64), 50).save(stream, "PNG")
    return stream.getvalue()


def of_size(pixels: int) -> bytes:
    """Return a PNG that says that it has this height and width."""
    content = whole_png()
    header = (
        b"IHDR"
        + struct.pack(
            ">II",
            pixels,
            pixels,
        )
        + content[24:29]
    )
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


@pytest.mark.parametrize("model", ["resnet", "unet"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "[Errno 2] No such file or directory"),
        (b"", "(it is empty): replace or remove it"),
        (b"not an image", "cannot identify image file"),
        (whole_png()[:20], "runcated"),
        (whole_png()[:200], "truncated): replace or remove it"),
        (of_size(60_000), "exceeds limit of"),
        (np.uint16, "(its pixels are of the mode I;16): convert it to 8 bits per channel"),
        (np.int32, "(its pixels are of the mode I): convert it to 8 bits per channel"),
        (np.float32, "(its pixels are of the mode F): convert it to 8 bits per channel"),
    ],
    ids=["missing", "empty", "text", "header", "truncated", "huge", "uint16", "int32", "float32"],
)
def test_image_that_cannot_be_read_is_one_line(
    package: Callable[[str], Any], tmp_path: Path, content: Any, message: str, model: str
) -> None:
    p = package(model)
    file = tmp_path / "a.tif"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        Image.fromarray(np.full((8, 8), 200, content)).save(file)
    with pytest.raises(p.errors.UserError) as caught:
        decoded(p, file)
    assert str(caught.value).startswith(f"cannot read the image {file} (")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_image_of_16_bits_in_a_png_is_named(p: Package, tmp_path: Path) -> None:
    """With levels below 256, a division by 256 would make it black."""
    Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16)).save(tmp_path / "a.png")
    with pytest.raises(p.errors.UserError, match=r"a.png \(.*I;16\): convert it to 8 bits"):
        decoded(p, tmp_path / "a.png")


def test_prepare_gives_equal_batches_for_equal_generators(p: Package) -> None:
    train, _, spec = p.data.load(p.data.DataConfig())
    batch = train.__getitems__(list(range(64)))
    prepare = p.data.Prepare(spec, p.data.DataConfig(flip=True, shift=2))
    first, again, other = (
        prepare(batch, True, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_statistics_of_large_images_are_of_four_million_pixels(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path, ["a", "b"], 10)
    decode = Mock(wraps=p.data.read_image)
    monkeypatch.setattr(p.data, "read_image", decode)
    p.data.load(p.data.DataConfig(path=root, size=1024))
    assert decode.call_count == 4  # of 16, with one million pixels each


def test_exif_orientation_is_applied(p: Package, tmp_path: Path) -> None:
    white_above = np.full(
        (8, 8),
        [[255]] * 4 + [[0]] * 4,
        np.uint8,
    )
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    Image.fromarray(white_above).save(tmp_path / "a.png", exif=exif)
    pixels = p.image_files.read_image(tmp_path / "a.png", p.data.DataConfig(size=8, channels=1))
    assert pixels[0, :, 6:].min() == 255


def augmented(
    p: Any,
    images: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    """Return images (n, channels, size, size), from 0 to 1, as they are in training."""
    cfg = p.data.DataConfig(shift=0, **options)
    return torch.as_tensor(
        p.data.augment(
            images,
            cfg,
            torch.Generator().manual_seed(0),
        )
    )


def test_a_random_crop_is_a_part_as_pillow_resizes_it(p: Package) -> None:
    size = 64
    rows, columns = torch.meshgrid(
        torch.arange(size),
        torch.arange(size),
        indexing="ij",
    )
    places = torch.stack((rows, columns)).float() + 0.5
    random = torch.rand(
        1,
        9,
        9,
        generator=torch.Generator().manual_seed(0),
    )
    noise = torch.nn.functional.interpolate(random[None], (size, size), mode="bicubic")[0]
    image = torch.cat((places, noise)).expand(
        500,
        3,
        size,
        size,
    )
    crops = augmented(p, image, crop=0.3)

    middle = crops[:, :2, 16:48, 16:48]  # far from the edges, which are repeated
    heights = (middle[:, 0, -1, 0] - middle[:, 0, 0, 0]) / 31
    widths = (middle[:, 1, 0, -1] - middle[:, 1, 0, 0]) / 31
    area = heights * widths
    assert 0.3 <= area.min() < 0.33
    assert 0.97 < area.max() <= 1.0001
    assert abs(area.mean() - 0.65) < 0.03
    ratio = widths / heights
    assert 0.749 < ratio.min() < 0.78
    assert 1.29 < ratio.max() < 1.334
    left = middle[:, 1, 0, 0] - 16.5 * widths
    top = middle[:, 0, 0, 0] - 16.5 * heights
    assert min(left.min(), top.min()) > -0.01
    assert max((left + 64 * widths).max(), (top + 64 * heights).max()) < 64.01

    whole = Image.fromarray(noise[0].numpy())
    for number in range(20):
        right = left[number] + 64 * widths[number]
        below = top[number] + 64 * heights[number]
        edges = torch.stack((left[number], top[number], right, below)).clamp(0, 64)
        box = (float(edges[0]), float(edges[1]), float(edges[2]), float(edges[3]))
        part = whole.resize(
            (size, size),
            Image.Resampling.BILINEAR,
            box,
        )
        expected = torch.tensor(np.array(part))[2:-2, 2:-2]
        torch.testing.assert_close(
            crops[number, 2, 2:-2, 2:-2],
            expected,
            atol=1e-3,
            rtol=0,
        )


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_colors_change_as_pillow_changes_them(p: Package, channels: int) -> None:
    generator = torch.Generator().manual_seed(1)
    images = (
        torch.randint(
            256,
            (32, channels, 8, 8),
            generator=generator,
        )
        / 255
    )
    changed = augmented(p, images, jitter=0.4)
    factors = torch.rand((3, 32), generator=torch.Generator().manual_seed(0)) * 0.8 + 0.6
    for image, result, (brightness, contrast, saturation) in zip(
        images, changed, factors.T.tolist(), strict=True
    ):
        levels = (255 * image[:3]).round().byte().permute(1, 2, 0).numpy()
        picture = Image.fromarray(levels if channels > 1 else levels[..., 0])
        picture = ImageEnhance.Brightness(picture).enhance(brightness)
        picture = ImageEnhance.Contrast(picture).enhance(contrast)
        picture = ImageEnhance.Color(picture).enhance(saturation)
        expected = (
            torch.tensor(np.array(picture))
            .view(8, 8, -1)
            .permute(
                2,
                0,
                1,
            )
        )
        assert (255 * result[:3] - expected).abs().max() < 4  # Pillow rounds each time
    assert torch.equal(changed[:, 3:], images[:, 3:])
    assert (changed - images).abs().mean() > 0.05


def test_augmentations_are_off_by_default_but_for_the_shift(p: Package) -> None:
    images = torch.rand(4, 3, 8, 8)
    assert augmented(p, images) is images


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_jpeg_is_as_pillow_decodes_it(
    p: Package, tmp_path: Path, mode: str, orientation: int, channels: int
) -> None:
    random = np.random.default_rng(0)
    noise = Image.fromarray(
        random.integers(
            0,
            256,
            (5, 7, 3),
            dtype=np.uint8,
        )
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "a.jpg"
    noise.resize((60, 40), Image.Resampling.BICUBIC).convert(mode).save(file, exif=exif)
    pixels = p.image_files.read_image(file, p.data.DataConfig(size=32, channels=channels))
    kind = "L" if channels == 1 else "RGB"
    with Image.open(file) as image:
        image.draft(kind, image.size)  # gray pixels as they are in the file
        rotated = ImageOps.exif_transpose(image).convert(kind)
    expected = rotated.resize((32, 32), Image.Resampling.BILINEAR)
    difference = pixels.int() - torch.tensor(np.array(expected)).view(32, 32, -1).permute(
        2,
        0,
        1,
    )
    assert difference.abs().max() <= 1


def test_jpegs_of_at_least_twice_the_size_are_scaled_when_decoded(
    p: Package, tmp_path: Path
) -> None:
    ramp = np.linspace(0, 255, 640).astype(np.uint8)
    file = tmp_path / "a.jpg"
    Image.fromarray(np.tile(ramp, (480, 1))).convert("RGB").save(file, quality=95)
    pixels = p.image_files.read_image(file, p.data.DataConfig(size=64))
    expected = torch.linspace(0, 255, 640).view(64, 10).mean(1)
    assert (pixels - expected).abs().max() < 3


def test_a_test_folder_may_have_no_class_of_its_own(p: Package, tmp_path: Path) -> None:
    """Training ignores the folder; only a request for the test split fails."""
    make_folder(tmp_path / "train", ["a", "b"], 2)
    make_folder(tmp_path / "val", ["a"], 1)
    make_folder(tmp_path / "test", ["unknown"], 1)
    cfg = p.data.DataConfig(path=tmp_path, size=8)
    assert p.data.load(cfg)[2].classes == ("a", "b")
    with pytest.raises(p.errors.UserError, match="class unknown, of which the run has no training"):
        p.data.load_test(cfg)


def test_batch_of_one_is_one_line_where_batchnorm_has_one_value(
    p: Package,
) -> None:
    spec = p.data.Spec(
        1,
        8,
        ("a", "b"),
        (0.0,),
        (1.0,),
    )
    model = p.model.build(p.model.ModelConfig(), spec)
    label = torch.tensor([0])
    model(torch.rand(1, 1, 8, 8), label)
    with pytest.raises(p.errors.UserError, match="a batch has 1 image: BatchNorm needs 2"):
        model(torch.rand(1, 1, 4, 4), label)
    model.eval()(
        torch.rand(
            1,
            1,
            4,
            4,
        ),
        label,
    )
