"""Images with masks: what is loaded, what happens on the device, your own folders, and what bad ones give."""

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
from ..readers import masks as source
from ..readers.common import UnreadableError
from ..tools import view

RED = (250, 10, 10)


def folder_of(root: Path, count: int = 10, values: tuple[int, ...] = (0, 1, 2), first: int = 0) -> Path:
    """Make images whose grey is 20 times the class of the pixel, 40 x 30, with their masks."""
    noise = np.random.default_rng(first)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        classes = np.repeat(np.repeat(noise.integers(0, len(values), (6, 8)), 5, 0), 5, 1)
        classes[0, : len(values)] = range(len(values))
        Image.fromarray((classes * 20).astype(np.uint8)).convert("RGB").save(root / "images" / f"{number:03}.png")
        Image.fromarray(np.asarray(values, np.uint8)[classes]).save(root / "masks" / f"{number:03}.png")
    return root


def config_of(root: Path, **values: Any) -> data.DataConfig:
    return data.DataConfig(path=root, **{"size": 16, "cache_dir": root.parent / "cache", **values})


def load(root: Path, **values: Any) -> data.Data:
    return data.load(config_of(root, **values))


def all_of(split: data.Samples) -> data.Batch:
    return split.__getitems__(list(range(len(split))))


def test_canvases_have_digits_of_their_own_split_alone() -> None:
    found, again = data.load(data.DataConfig()), data.load(data.DataConfig())
    assert (len(found.train), len(found.val)) == (1438 * 3 // 4, 359 * 3 // 4)
    images, masks = all_of(found.train)
    assert (images.shape[1:], masks.shape[1:]) == ((1, 32, 32), (32, 32))
    assert images.dtype == masks.dtype == torch.uint8
    assert torch.equal(images, all_of(again.train)[0])
    assert masks.unique().tolist() == list(range(11))
    assert (images.squeeze(1)[masks > 0] >= data.INK).all()
    seen = [digits_of(*all_of(split)) for split in (found.train, found.val)]
    assert 1000 < len(seen[0]) < 1500, "cut from 1,438 digits, each on several canvases"
    assert len(seen[0] & seen[1]) < 0.01 * len(seen[1]), "but for digits that are alike"


def digits_of(images: torch.Tensor, masks: torch.Tensor) -> set[bytes]:
    """The digits' pixels, where a class is once on a canvas, moved to the upper left corner."""
    found = set()
    for image, mask in zip(images[:, 0], masks, strict=True):
        for label in mask.unique().tolist()[1:]:
            rows, columns = (mask == label).nonzero(as_tuple=True)
            height, width = int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1
            if max(height, width) <= data.DIGIT:
                box = slice(int(rows.min()), int(rows.max()) + 1), slice(int(columns.min()), int(columns.max()) + 1)
                found.add(bytes([label, width]) + bytes((image[box] * (mask[box] == label)).flatten().tolist()))
    return found


def test_brightness_alone_does_not_tell_a_digit_from_the_background() -> None:
    images, masks = all_of(data.load(data.DataConfig()).val)
    digits = masks > 0
    overlaps = [
        ((images[:, 0] >= level) & digits).sum() / ((images[:, 0] >= level) | digits).sum() for level in range(256)
    ]
    assert max(overlaps) < 0.7


def test_preparing_normalises_and_only_training_moves() -> None:
    cfg = data.DataConfig()
    found = data.load(cfg)
    batch = all_of(found.train)
    prepare = data.Prepare(found.spec, cfg)
    still, masks = prepare(batch, False, torch.default_generator)
    assert still.mean().item() == pytest.approx(0, abs=1e-4)
    assert still.std().item() == pytest.approx(1, abs=1e-4)
    assert masks.dtype == torch.int64
    assert torch.equal(masks, batch[1].long())
    assert found.spec.pixels == tuple(masks.flatten().bincount().tolist())
    moved, again = (prepare(batch, True, torch.Generator().manual_seed(1))[0] for _ in range(2))
    assert torch.equal(moved, again)
    assert not torch.equal(moved, still)


@pytest.mark.parametrize(("shift", "flip"), [(3, False), (0, True), (3, True)])
def test_an_image_and_its_mask_move_alike(shift: int, flip: bool) -> None:
    cfg = data.DataConfig(shift=shift, flip=flip)
    spec = data.Spec(1, 16, ("a", "b"), (0, 1), None, (1, 1), (0.0,), (1.0,))
    masks = torch.randint(0, 200, (64, 16, 16), dtype=torch.uint8)
    images, moved = data.Prepare(spec, cfg)((masks.unsqueeze(1), masks), True, torch.Generator().manual_seed(0))
    assert torch.equal((images[:, 0] * 255).round().long(), moved)
    same = (moved == masks).flatten(1).all(1).sum().item()
    assert 0 <= same < (64 if flip and not shift else 16)
    middle = masks[:, 4:12, 4:12].flatten(1)
    assert (moved[:, 3:13, 3:13].flatten(1).long().sum(1) - middle.long().sum(1)).abs().max() > 0


def test_a_shift_is_by_whole_pixels_and_repeats_the_edge() -> None:
    masks = torch.zeros(64, 5, 5, dtype=torch.int64)
    masks[:, 2, 2], masks[:, 0] = 1, 2
    _, moved = data.shift(masks.unsqueeze(1), masks, 1, torch.Generator().manual_seed(0))
    places = (moved == 1).flatten(1).float().argmax(1)
    assert set((places // 5).tolist()) == set((places % 5).tolist()) == {1, 2, 3}
    assert sorted(set((moved == 2).sum((1, 2)).tolist())) == [0, 5, 10]


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_a_folder_of_images_and_masks(tmp_path: Path, cache: str) -> None:
    found = load(folder_of(tmp_path / "own", 10, (0, 3, 7)), cache=cache, size=40)
    assert (len(found.train), len(found.val), found.problems) == (8, 2, ())
    spec = found.spec
    assert (spec.classes, spec.values, spec.ignore, spec.channels) == (("0", "3", "7"), (0, 3, 7), None, 3)
    assert sum(spec.pixels) == 8 * 30 * 40
    images, masks = found.train.__getitems__([5, 0, 3])
    assert (images.shape, masks.shape) == ((3, 3, 40, 40), (3, 40, 40))
    assert images.dtype == masks.dtype == torch.uint8
    assert masks.unique().tolist() == [0, 1, 2]
    inner = ((images[:, 0].float() / 20).round() == masks).float().mean()
    assert inner > 0.9, "an image has its own mask, but for smoothed edges"
    ours, theirs = pickle.loads(pickle.dumps(found.val)).__getitems__([0]), found.val.__getitems__([0])  # noqa: S301
    assert torch.equal(ours[1], theirs[1]), "as loader processes get it"
    means = torch.tensor(spec.mean) * 255
    torch.testing.assert_close(means, all_of(found.train)[0].double().mean((0, 2, 3)).float(), rtol=1e-4, atol=1e-2)


def test_folders_say_what_is_held_out_and_names_may_have_any_suffix_and_folder(tmp_path: Path) -> None:
    folder_of(tmp_path / "own" / "train", 4)
    folder_of(tmp_path / "own" / "val", 3, first=4)
    (tmp_path / "own" / "train" / "images" / "deep").mkdir()
    (tmp_path / "own" / "train" / "masks" / "deep").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "own" / "train" / "images" / "deep" / "x.jpg")
    Image.new("L", (8, 8)).save(tmp_path / "own" / "train" / "masks" / "deep" / "x.bmp")
    found = load(tmp_path / "own")
    assert (len(found.train), len(found.val)) == (5, 3)


def test_a_binary_mask_may_be_black_and_white(tmp_path: Path) -> None:
    found = load(folder_of(tmp_path / "own", 10, (0, 255)))
    assert (found.spec.classes, found.spec.values) == (("0", "1"), (0, 255))
    assert all_of(found.train)[1].unique().tolist() == [0, 1]


@pytest.mark.parametrize("value", [0, 255])
def test_an_ignored_value_is_no_class(tmp_path: Path, value: int) -> None:
    values = (0, 1, 2, 255)
    found = load(folder_of(tmp_path / "own", 10, values), ignore=value)
    kept = tuple(other for other in values if other != value)
    assert (found.spec.values, found.spec.ignore) == (kept, data.IGNORED)
    assert all_of(found.train)[1].unique().tolist() == [0, 1, 2, 255]


def test_masks_of_a_palette_of_one_bit_and_of_16_bits_are_read(tmp_path: Path) -> None:
    values = np.array([[0, 1], [1, 0]], np.uint8)
    painted = Image.fromarray(values)
    painted.putpalette([9, 9, 9, *RED])
    painted.save(tmp_path / "palette.png")
    Image.fromarray(values.astype(bool)).save(tmp_path / "bit.png")
    Image.fromarray(values.astype(np.uint16)).save(tmp_path / "wide.png")
    for name in ("palette", "bit", "wide"):
        read = source.read_mask(tmp_path / f"{name}.png")
        assert read.dtype.name == "uint8"
        assert np.array_equal(read, values)
    Image.fromarray(values.astype(np.uint16) * 300).save(tmp_path / "large.png")
    with pytest.raises(UnreadableError, match="value 300"):
        source.read_mask(tmp_path / "large.png")


def test_an_image_that_its_camera_turned_fits_its_mask(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "own", 10)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 40), RED).save(root / "images" / "000.png", exif=exif)
    assert load(root).problems == ()


def test_names_without_a_partner_are_listed(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "own", 10)
    (root / "masks" / "003.png").unlink()
    (root / "images" / "007.png").rename(root / "images" / "seven.png")
    found = load(root)
    assert len(found.train) + len(found.val) == 8
    assert "2 images in .* have no mask of their name: 003, seven" in re_of(found.problems[0])
    assert found.problems[1].endswith("1 masks in " + f"{root} have no image of their name: 007")


def re_of(text: str) -> str:
    """The line without the folder's own name in it."""
    head, _, tail = text.partition(" in ")
    return f"{head} in .*{tail[tail.index(' have') :]}"


def test_what_cannot_be_used_is_left_out_counted_and_capped(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "own", 20)
    (root / "masks" / "002.png").write_bytes(b"")
    (root / "images" / "005.png").write_bytes(b"no image")
    Image.new("L", (7, 9)).save(root / "masks" / "011.png")
    found = load(root, max_unreadable=0.2)
    assert len(found.train) + len(found.val) == 17
    text = "\n".join(found.problems)
    for part in ("002.png: it is no image", "005.png cannot be read: it is no image", "has 7 x 9 pixels", "40 x 30"):
        assert part in text.replace("it has", "has")
    with pytest.raises(UserError, match="2 of 20 cannot be read .* or raise data.max_unreadable=0.05"):
        load(root)


def test_a_broken_image_is_replaced_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder_of(tmp_path / "own", 20)
    for kind in ("none", "disk"):
        found = load(root, cache=kind, cache_dir=tmp_path / kind)
        assert (len(found.train), len(found.val), found.problems) == (16, 4, ())
    victim = root / "images" / "000.png"
    victim.write_bytes(victim.read_bytes()[:60])  # its header stays
    found = load(root, max_unreadable=0.2)
    assert len(all_of(found.train)[0]) + len(all_of(found.val)[0]) == 20
    assert "000.png" in capsys.readouterr().err
    found = load(root, cache="disk", max_unreadable=0.2)
    assert len(found.train) + len(found.val) == 19
    assert "000.png" in found.problems[0]


def test_what_is_made_once_is_made_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder_of(tmp_path / "own", 10)
    before = load(root, cache="disk")
    read: list[Path] = []
    reads = source.read_mask

    def note(file: Path) -> Any:
        read.append(file)
        return reads(file)

    monkeypatch.setattr(source, "read_mask", note)
    again = load(root, cache="disk")
    assert not read
    assert torch.equal(all_of(before.train)[1], all_of(again.train)[1])
    folder_of(root, 2, (0, 5), first=10)
    assert "5" in load(root, cache="disk").spec.classes
    assert len(read) == 2 * 12


Change = Callable[[Path], Any]


def _fill(folder: Path, value: int) -> None:
    for file in folder.rglob("masks/*.png"):
        Image.new("L", (40, 30), value).save(file)


def _jpeg(folder: Path) -> None:
    for file in folder.rglob("masks/*.png"):
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()


def _coloured(folder: Path) -> None:
    for file in folder.rglob("masks/*.png"):
        Image.new("RGB", (40, 30)).save(file)


def _disguised(folder: Path) -> None:
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


BAD: dict[str, tuple[Change, dict[str, Any], str]] = {
    "no folder of masks": (lambda root: (root / "masks").rename(root / "labels"), {}, "has no folder masks"),
    "no image": (_clear, {}, "images holds no file that can be read"),
    "names do not match": (_rename, {}, "no image in .* images are 000, 001, 002 and 7 more, masks are mask-000"),
    "two images of a name": (
        lambda root: Image.new("RGB", (9, 9)).save(root / "images" / "004.jpg"),
        {},
        "004.jpg and .*004.png have the same name",
    ),
    "JPEG": (_jpeg, {}, "10 masks in .* are JPEG or WebP .*compression changes the values.*PNG"),
    "JPEG by another name": (_disguised, {}, "it is a JPEG, whose compression changes the values"),
    "colours": (_coloured, {}, "it is of mode RGB; a mask has one whole number a pixel"),
    "one class": (lambda root: _fill(root, 3), {}, r"hold the value 3 alone \(data.ignore=null\): two classes"),
    "all ignored": (lambda root: _fill(root, 3), {"ignore": 3}, r"ignored pixels alone \(data.ignore=3\)"),
    "zero length": (_empty, {}, "1 of 10 cannot be read .*000.png|of 10 cannot be read"),
    "none is left": (_empty, {"max_unreadable": 1.0}, "no image of train can be used"),
    "no val": (lambda root: None, {"val_fraction": 0.01}, "data.val_fraction=0.01 of 10 images leaves one split empty"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_folders(tmp_path: Path, what: str) -> None:
    change, values, message = BAD[what]
    root = folder_of(tmp_path / "own", 10)
    change(root)
    with pytest.raises(UserError, match=message):
        load(root, **values)


def test_no_folder_an_empty_one_and_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not there"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no folder images"):
        load(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is a file"):
        load(tmp_path / "file")


def test_a_value_that_train_has_not_is_named_with_its_file(tmp_path: Path) -> None:
    folder_of(tmp_path / "own" / "train", 4)
    folder_of(tmp_path / "own" / "val", 3, (0, 1, 9), first=4)
    with pytest.raises(UserError, match=r"val/masks/004.png of val has the value 9, which no mask of train has"):
        load(tmp_path / "own")
    assert len(load(tmp_path / "own", ignore=9).val) == 3


def test_too_few_digits_for_a_canvas() -> None:
    with pytest.raises(UserError, match="data.val_fraction"):
        data.load(data.DataConfig(val_fraction=0.0006))
    with pytest.raises(UserError, match="leaves one split empty"):
        data.load(data.DataConfig(val_fraction=0.0001))


def test_the_data_are_told_of_and_drawn(tmp_path: Path) -> None:
    cfg = config_of(folder_of(tmp_path / "own", 10, (0, 1, 255)), ignore=255)
    found = data.load(cfg)
    told = view.summary(found)
    assert told["shape"] == "3 x 16 x 16"
    assert told["pixels of train"].startswith("0: ")
    batch = data.Prepare(found.spec, cfg)(all_of(found.train), True, torch.Generator())
    figure = view.picture(batch, found.spec)
    assert len([axes for axes in figure.axes if axes.images]) == 8
    figure.savefig(tmp_path / "data.png")
    assert (tmp_path / "data.png").stat().st_size > 5_000


def test_the_palette_is_that_of_pascal_voc() -> None:
    colours = view.palette()
    assert [tuple(colours[i].tolist()) for i in (0, 1, 2, 15, 20, 255)] == [
        (0, 0, 0),
        (128, 0, 0),
        (0, 128, 0),
        (192, 128, 128),
        (0, 64, 128),
        (224, 224, 192),
    ]
