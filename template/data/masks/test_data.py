"""Image segmentation data: built-in canvases, preparation, your own folders, and errors."""

import pickle
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
from ..readers.common import UnreadableError
from ..tools import view

RED = (250, 10, 10)


def make_folder(root: Path, count: int = 10, values: tuple[int, ...] = (0, 1, 2), first: int = 0) -> Path:
    """Make 40 x 30 images, whose pixels are 20 times their class, with their masks."""
    rng = np.random.default_rng(first)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        classes = np.repeat(np.repeat(rng.integers(0, len(values), (6, 8)), 5, 0), 5, 1)
        classes[0, : len(values)] = range(len(values))
        Image.fromarray((classes * 20).astype(np.uint8)).convert("RGB").save(root / "images" / f"{number:03}.png")
        Image.fromarray(np.asarray(values, np.uint8)[classes]).save(root / "masks" / f"{number:03}.png")
    return root


def make_config(root: Path, **values: Any) -> data.DataConfig:
    return data.DataConfig(path=root, **{"size": 16, "cache_dir": root.parent / "cache", **values})


def load(root: Path, **values: Any) -> data.Data:
    return data.load(make_config(root, **values))


def load_all(split: data.Samples) -> data.Batch:
    return split.__getitems__(list(range(len(split))))


def test_canvases_have_digits_of_their_own_split() -> None:
    found, again = data.load(data.DataConfig()), data.load(data.DataConfig())
    assert (len(found.train), len(found.val)) == (1438 * 3 // 4, 359 * 3 // 4)
    images, masks = load_all(found.train)
    assert (images.shape[1:], masks.shape[1:]) == ((1, 32, 32), (32, 32))
    assert images.dtype == masks.dtype == torch.uint8
    assert torch.equal(images, load_all(again.train)[0])
    assert masks.unique().tolist() == list(range(11))
    assert (images.squeeze(1)[masks > 0] >= data.INK).all()
    digits = [digits_of(*load_all(split)) for split in (found.train, found.val)]
    assert 1000 < len(digits[0]) < 1500, "from 1,438 digits, each on several canvases"
    assert len(digits[0] & digits[1]) < 0.01 * len(digits[1]), "only identical digits"


def digits_of(images: torch.Tensor, masks: torch.Tensor) -> set[bytes]:
    """Crops of the digits whose class occurs once on a canvas."""
    found = set()
    for image, mask in zip(images[:, 0], masks, strict=True):
        for label in mask.unique().tolist()[1:]:
            rows, columns = (mask == label).nonzero(as_tuple=True)
            height, width = int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1
            if max(height, width) <= data.DIGIT:
                box = slice(int(rows.min()), int(rows.max()) + 1), slice(int(columns.min()), int(columns.max()) + 1)
                found.add(bytes([label, width]) + bytes((image[box] * (mask[box] == label)).flatten().tolist()))
    return found


def test_brightness_does_not_separate_digits_from_background() -> None:
    images, masks = load_all(data.load(data.DataConfig()).val)
    digits = masks > 0
    overlaps = [
        ((images[:, 0] >= level) & digits).sum() / ((images[:, 0] >= level) | digits).sum() for level in range(256)
    ]
    assert max(overlaps) < 0.7


def test_prepare_normalizes_and_shifts_only_in_training() -> None:
    cfg = data.DataConfig()
    found = data.load(cfg)
    batch = load_all(found.train)
    prepare = data.Prepare(found.spec, cfg)
    unshifted, masks = prepare(batch, False, torch.default_generator)
    assert unshifted.mean().item() == pytest.approx(0, abs=1e-4)
    assert unshifted.std().item() == pytest.approx(1, abs=1e-4)
    assert masks.dtype == torch.int64
    assert torch.equal(masks, batch[1].long())
    assert found.spec.pixels == tuple(masks.flatten().bincount().tolist())
    shifted, again = (prepare(batch, True, torch.Generator().manual_seed(1))[0] for _ in range(2))
    assert torch.equal(shifted, again)
    assert not torch.equal(shifted, unshifted)


@pytest.mark.parametrize(("shift", "flip"), [(3, False), (0, True), (3, True)])
def test_image_and_mask_are_augmented_alike(shift: int, flip: bool) -> None:
    cfg = data.DataConfig(shift=shift, flip=flip)
    spec = data.Spec(1, 16, ("a", "b"), (0, 1), None, (1, 1), (0.0,), (1.0,))
    masks = torch.randint(0, 200, (64, 16, 16), dtype=torch.uint8)
    images, shifted = data.Prepare(spec, cfg)((masks.unsqueeze(1), masks), True, torch.Generator().manual_seed(0))
    assert torch.equal((images[:, 0] * 255).round().long(), shifted)
    same = (shifted == masks).flatten(1).all(1).sum().item()
    assert 0 <= same < (64 if flip and not shift else 16)
    middle = masks[:, 4:12, 4:12].flatten(1)
    assert (shifted[:, 3:13, 3:13].flatten(1).long().sum(1) - middle.long().sum(1)).abs().max() > 0


def test_shift_is_by_whole_pixels_and_replicates_the_edge() -> None:
    masks = torch.zeros(64, 5, 5, dtype=torch.int64)
    masks[:, 2, 2], masks[:, 0] = 1, 2
    _, shifted = data.shift(masks.unsqueeze(1), masks, 1, torch.Generator().manual_seed(0))
    positions = (shifted == 1).flatten(1).float().argmax(1)
    assert set((positions // 5).tolist()) == set((positions % 5).tolist()) == {1, 2, 3}
    assert sorted(set((shifted == 2).sum((1, 2)).tolist())) == [0, 5, 10]


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_own_images_and_masks_are_loaded(tmp_path: Path, cache: str) -> None:
    found = load(make_folder(tmp_path / "own", 10, (0, 3, 7)), cache=cache, size=40)
    assert (len(found.train), len(found.val), found.problems) == (8, 2, ())
    spec = found.spec
    assert (spec.classes, spec.values, spec.ignore, spec.channels) == (("0", "3", "7"), (0, 3, 7), None, 3)
    assert sum(spec.pixels) == 8 * 30 * 40
    images, masks = found.train.__getitems__([5, 0, 3])
    assert (images.shape, masks.shape) == ((3, 3, 40, 40), (3, 40, 40))
    assert images.dtype == masks.dtype == torch.uint8
    assert masks.unique().tolist() == [0, 1, 2]
    matching = ((images[:, 0].float() / 20).round() == masks).float().mean()
    assert matching > 0.9, "images and masks match, except at smoothed edges"
    ours, theirs = pickle.loads(pickle.dumps(found.val)).__getitems__([0]), found.val.__getitems__([0])  # noqa: S301
    assert torch.equal(ours[1], theirs[1]), "as a worker process receives it"
    means = torch.tensor(spec.mean) * 255
    torch.testing.assert_close(means, load_all(found.train)[0].double().mean((0, 2, 3)).float(), rtol=1e-4, atol=1e-2)


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
    found = load(root)
    assert len(found.train) + len(found.val) == 8
    assert found.problems[0] == f"2 images in {root} have no mask: 003, seven"
    assert found.problems[1] == f"1 masks in {root} have no image: 007"


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


def test_too_few_digits_for_a_canvas_is_an_error() -> None:
    with pytest.raises(UserError, match="data.val_fraction"):
        data.load(data.DataConfig(val_fraction=0.0006))
    with pytest.raises(UserError, match="leaves one split empty"):
        data.load(data.DataConfig(val_fraction=0.0001))


def test_summary_and_plot(tmp_path: Path) -> None:
    cfg = make_config(make_folder(tmp_path / "own", 10, (0, 1, 255)), ignore=255)
    found = data.load(cfg)
    summary = view.summary(found)
    assert summary["shape"] == "3 x 16 x 16"
    assert summary["train pixels"].startswith("0: ")
    batch = data.Prepare(found.spec, cfg)(load_all(found.train), True, torch.Generator())
    figure = view.plot(batch, found.spec)
    assert len([axes for axes in figure.axes if axes.images]) == 8
    figure.savefig(tmp_path / "data.png")
    assert (tmp_path / "data.png").stat().st_size > 5_000


def test_palette_is_that_of_pascal_voc() -> None:
    colors = view.palette()
    assert [tuple(colors[i].tolist()) for i in (0, 1, 2, 15, 20, 255)] == [
        (0, 0, 0),
        (128, 0, 0),
        (0, 128, 0),
        (192, 128, 128),
        (0, 64, 128),
        (224, 224, 192),
    ]
