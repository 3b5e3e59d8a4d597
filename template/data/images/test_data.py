"""Images: what is loaded, what happens on the device, your own folders, and what a bad one gives."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data
from ..errors import UserError
from ..readers import images as source
from ..readers.common import UnreadableError
from ..tools import view


def folder_of(root: Path, classes: int, images: int) -> Path:
    """Make a folder of coloured noise, one sub-folder a class, all of the class's own brightness."""
    noise = np.random.default_rng(0)
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(images):
            pixels = noise.integers(40 * label, 40 * label + 40, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{number}.png")
    return root


def config_of(root: Path, **values: Any) -> data.DataConfig:
    return data.DataConfig(path=root, **{"size": 16, "cache_dir": root.parent / "cache", **values})


def all_of(split: data.Samples) -> data.Batch:
    return split.__getitems__(list(range(len(split))))


def test_the_digits_are_all_there_once() -> None:
    found = data.load(data.DataConfig())
    assert len(found.train) + len(found.val) == 1797
    assert (found.spec.channels, found.spec.size, len(found.spec.classes)) == (1, 8, 10)
    images, labels = found.train.__getitems__([5, 3])
    assert (images.dtype, images.shape, labels.shape) == (torch.uint8, (2, 1, 8, 8), (2,))
    train = {bytes(image.numpy()) for image in all_of(found.train)[0]}
    assert len(train) > 1400


def test_preparing_normalises_and_only_training_moves() -> None:
    cfg = data.DataConfig()
    found = data.load(cfg)
    batch = all_of(found.train)
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


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_a_folder_of_images_is_split_within_each_class(tmp_path: Path, cache: str) -> None:
    found = data.load(config_of(folder_of(tmp_path / "own", 3, 10), cache=cache))
    assert found.spec.classes == ("class0", "class1", "class2")
    assert found.train.labels.bincount().tolist() == [8, 8, 8]
    assert found.val.labels.bincount().tolist() == [2, 2, 2]
    images, labels = found.val.__getitems__([5, 0, 3])
    assert (images.shape, images.dtype, labels.dtype) == ((3, 3, 16, 16), torch.uint8, torch.int64)
    assert labels.tolist() == [2, 0, 1]
    assert (images.float().mean((1, 2, 3)) // 40).tolist() == [2, 0, 1], "an image has the label of another"
    everything = torch.cat([all_of(found.train)[0], all_of(found.val)[0]])
    assert len({bytes(image.numpy()) for image in everything}) == 30


def test_the_memory_map_has_the_pixels_of_the_files_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder_of(tmp_path / "own", 2, 6)
    lazy, mapped = (data.load(config_of(root, cache=cache)) for cache in ("none", "disk"))
    assert mapped.spec == lazy.spec
    again = pickle.loads(pickle.dumps(mapped.train))  # noqa: S301  # as it reaches a loader process
    for one, other in ((lazy.train, mapped.train), (lazy.val, mapped.val), (lazy.train, again)):
        assert all(torch.equal(a, b) for a, b in zip(all_of(one), all_of(other), strict=True))
    pixels, _ = all_of(lazy.train)
    monkeypatch.setattr(source, "decode", None)
    assert torch.equal(all_of(data.load(config_of(root, cache="disk")).train)[0], pixels)
    monkeypatch.undo()
    Image.new("RGB", (9, 9), (200, 200, 200)).save(root / "class0" / "0.png")
    renewed = data.load(config_of(root, cache="disk"))
    assert 200 in torch.cat([all_of(renewed.train)[0], all_of(renewed.val)[0]]).amax((1, 2, 3))


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_a_split_by_folder(tmp_path: Path, name: str) -> None:
    folder_of(tmp_path / "own" / "train", 3, 4)
    folder_of(tmp_path / "own" / name, 2, 3)
    found = data.load(config_of(tmp_path / "own"))
    assert found.train.labels.bincount().tolist() == [4, 4, 4]
    assert found.val.labels.bincount().tolist() == [3, 3]
    assert found.problems == ()


def test_what_lies_beside_the_split_is_told(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        folder_of(tmp_path / "own" / name, 2, 2)
    Image.new("L", (4, 4)).save(tmp_path / "own" / "train" / "loose.png")
    problems = data.load(config_of(tmp_path / "own")).problems
    assert [line.rpartition(": ")[2] for line in problems] == ["test", "loose.png"]


def test_statistics_are_of_train_alone(tmp_path: Path) -> None:
    folder_of(tmp_path / "own" / "train", 2, 4)
    for name in ("class0", "class1"):
        (tmp_path / "own" / "val" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (255, 255, 255)).save(tmp_path / "own" / "val" / name / "white.png")
    found = data.load(config_of(tmp_path / "own"))
    pixels = all_of(found.train)[0].double() / 255
    assert found.spec.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-9)
    assert found.spec.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("suffix", "mode"), [(".jpg", "RGB"), (".png", "RGBA"), (".png", "P"), (".webp", "RGB"), (".tif", "I;16")]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_decoding_any_kind_of_image(tmp_path: Path, suffix: str, mode: str, channels: int) -> None:
    file = tmp_path / f"grey{suffix}"
    if mode == "I;16":
        Image.fromarray(np.full((50, 40), 100 * 256, np.uint16)).save(file)
    else:
        Image.new("RGB", (40, 50), (100, 100, 100)).convert(mode).save(file)
    pixels = source.decode(file, 12, channels)
    assert pixels.shape == (12, 12, channels)
    assert pixels.dtype == np.uint8
    assert abs(pixels.astype(int) - 100).max() <= 3


def test_a_camera_held_sideways(tmp_path: Path) -> None:
    image = Image.new("L", (8, 8))
    image.paste(255, (0, 0, 8, 4))  # white above
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    image.save(tmp_path / "a.png", exif=exif)
    assert source.decode(tmp_path / "a.png", 8, 1)[:, 6:].min() == 255


@pytest.mark.parametrize("content", [b"", b"This is no image.", None])
def test_what_is_no_image_says_so(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "a.png"
    Image.effect_noise((64, 64), 50).save(file)
    file.write_bytes(file.read_bytes()[:200] if content is None else content)
    with pytest.raises(UnreadableError, match="truncated" if content is None else "it is no image"):
        source.decode(file, 8, 3)


def test_an_image_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (64, 64)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadableError, match="decompression bomb"):
        source.decode(tmp_path / "a.png", 8, 1)


def broken(root: Path, count: int) -> Path:
    """Cut off the first files of train's last class."""
    for number in range(count):
        file = root / "train" / "class1" / f"{number}.png"
        file.write_bytes(file.read_bytes()[:60])
    return root


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_a_few_broken_images_are_left_out(tmp_path: Path, cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(tmp_path / "own" / "train", 2, 10)
    folder_of(tmp_path / "own" / "val", 2, 2)
    found = data.load(config_of(broken(tmp_path / "own", 2), cache=cache, max_unreadable=0.1))
    assert len(found.problems) == 2
    assert "class1/0.png" in found.problems[0]
    images, labels = all_of(found.train)
    assert len(images) == (18 if cache == "disk" else 20)
    assert (images.float().mean((1, 2, 3)) // 40 == labels).all(), "the label of one with the pixels of another"
    assert capsys.readouterr().err.count("left out") == (0 if cache == "disk" else 2)


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_too_many_broken_images_are_an_error(tmp_path: Path, cache: str) -> None:
    folder_of(tmp_path / "own" / "train", 2, 10)
    folder_of(tmp_path / "own" / "val", 2, 2)
    with pytest.raises(UserError, match=r"class1/0.png.*raise data.max_unreadable=0.05"):
        data.load(config_of(broken(tmp_path / "own", 3), cache=cache))


def test_no_place_for_the_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="give another data.cache_dir"):
        data.load(config_of(folder_of(tmp_path / "own", 2, 5)))


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("text")
    for name, message in (("nowhere", "is not there"), ("file.txt", "is a file"), ("empty", "holds no image")):
        with pytest.raises(UserError, match=f"data.path={tmp_path / name} {message}"):
            data.load(config_of(tmp_path / name))


def test_classes_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"one has fewer than two classes \(class0\)"):
        data.load(config_of(folder_of(tmp_path / "one", 1, 5)))
    (folder_of(tmp_path / "two", 2, 5) / "class2").mkdir()
    with pytest.raises(UserError, match="two has no image to learn class2 from"):
        data.load(config_of(tmp_path / "two"))
    folder_of(tmp_path / "split" / "train", 2, 3)
    folder_of(tmp_path / "split" / "val", 4, 1)
    with pytest.raises(UserError, match="val has images of class2, class3, which .*train has not"):
        data.load(config_of(tmp_path / "split"))


def test_splits_that_would_be_empty(tmp_path: Path) -> None:
    folder_of(tmp_path / "few", 2, 1)
    with pytest.raises(UserError, match="data.val_fraction=0.2 of 2 images holds out none"):
        data.load(config_of(tmp_path / "few"))
    folder_of(tmp_path / "split" / "train", 2, 3)
    (tmp_path / "split" / "val").mkdir()
    with pytest.raises(UserError, match="val holds no image"):
        data.load(config_of(tmp_path / "split"))


def test_small_classes_are_held_out_from_in_turn(tmp_path: Path) -> None:
    """Of 10 classes of 2 images, a fifth is 4 of all, though a fifth of 2 rounds to none."""
    found = data.load(config_of(folder_of(tmp_path / "own", 6, 2)))
    assert len(found.val) == 2
    assert found.train.labels.bincount().min() >= 1


def test_the_picture_and_what_is_told(tmp_path: Path) -> None:
    found = data.load(config_of(folder_of(tmp_path / "own", 2, 5)))
    told = view.summary(found)
    assert (told["shape"], told["train by class"]) == ("3 x 16 x 16", "class0: 4, class1: 4")
    batch = data.Prepare(found.spec, data.DataConfig())(all_of(found.val), False, torch.Generator())
    figure = view.picture(batch, found.spec)
    shown = [torch.from_numpy(axes.get_images()[0].get_array()) for axes in figure.axes]
    torch.testing.assert_close(torch.stack(shown).permute(0, 3, 1, 2) * 255, all_of(found.val)[0].float())
