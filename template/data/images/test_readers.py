"""Image folders: formats, splits, unreadable images, caches, and errors.

Delete this file together with the example's data.py: nothing else needs it.
"""

import errno
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data
from ..config import LoaderConfig
from ..distributed import World
from ..errors import UserError
from ..loaders import Loader
from ..readers import decoding
from ..readers.unreadable import UnreadableError
from ..techniques import cache_on_device
from .test_data import load_all, make_config, make_folder


def test_memory_mapped_images_equal_decoded_ones_and_are_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "own", 2, 6)
    lazy, mapped = (data.load(make_config(root, cache=cache)) for cache in ("none", "disk"))
    assert mapped.spec == lazy.spec
    again = pickle.loads(pickle.dumps(mapped.train))  # noqa: S301  # as a worker process receives it
    for one, other in ((lazy.train, mapped.train), (lazy.val, mapped.val), (lazy.train, again)):
        assert all(torch.equal(a, b) for a, b in zip(load_all(one), load_all(other), strict=True))
    pixels, _ = load_all(lazy.train)
    monkeypatch.setattr(decoding, "decode", None)
    assert torch.equal(load_all(data.load(make_config(root, cache="disk")).train)[0], pixels)
    monkeypatch.undo()
    Image.new("RGB", (9, 9), (200, 200, 200)).save(root / "class0" / "0.png")
    rebuilt = data.load(make_config(root, cache="disk"))
    assert 200 in torch.cat([load_all(rebuilt.train)[0], load_all(rebuilt.val)[0]]).amax((1, 2, 3))


def replace_by_file(folder: Path) -> None:
    """Put a file in the place of a folder."""
    shutil.rmtree(folder)
    folder.write_text("a file")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("images-*/images.u8", lambda file: file.write_bytes(file.read_bytes()[:100])),
        ("images-*/images.u8", lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?")),
        ("images-*/images.u8", lambda file: file.unlink()),
        ("images-*/manifest.json", lambda file: file.write_text("[1]")),
        ("images-*/manifest.json", lambda file: file.write_text(file.read_text().replace('"left_out"', '"leftout"'))),
        ("image-statistics-*/manifest.json", lambda file: file.write_text(file.read_text()[:40])),
        ("image-statistics-*/manifest.json", lambda file: file.unlink()),
        ("images-*", replace_by_file),
    ],
)
def test_damaged_cache_is_built_again(
    tmp_path: Path, name: str, change: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = make_config(make_folder(tmp_path / "own", 2, 6), cache="disk")
    whole = data.load(cfg)
    expected = [part.clone() for part in load_all(whole.train)]
    (damaged,) = (path for path in cfg.cache_dir.glob(name) if path.suffix != ".lock")
    change(damaged)
    found = data.load(cfg)
    assert found.spec == whole.spec
    assert all(torch.equal(a, b) for a, b in zip(load_all(found.train), expected, strict=True))
    said = capsys.readouterr().err.splitlines()
    assert [line.endswith("building it again") for line in said if "is damaged" in line] == [True]
    data.load(cfg)
    assert "damaged" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_split_by_folder(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path / "own" / "train", 3, 4)
    make_folder(tmp_path / "own" / name, 2, 3)
    found = data.load(make_config(tmp_path / "own"))
    assert found.train.labels.bincount().tolist() == [4, 4, 4]
    assert found.val.labels.bincount().tolist() == [3, 3]
    assert found.problems == ()


def test_unused_folders_and_images_are_reported(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        make_folder(tmp_path / "own" / name, 2, 2)
    Image.new("L", (4, 4)).save(tmp_path / "own" / "train" / "loose.png")
    problems = data.load(make_config(tmp_path / "own")).problems
    assert [line.rpartition(": ")[2] for line in problems] == ["test", "loose.png"]


def test_links_are_followed(tmp_path: Path) -> None:
    """To classes, to folders in them, and to images, of which one is missing. The labels are those of the names."""
    whole = make_folder(tmp_path / "elsewhere", 3, 6)
    expected = data.load(make_config(whole, max_unreadable=0.1))
    own = tmp_path / "own"
    (own / "class1").mkdir(parents=True)
    (own / "class0").symlink_to("../elsewhere/class0")
    (own / "class1/deep").symlink_to(whole / "class1")
    (own / "class2").mkdir()
    for file in (whole / "class2").iterdir():
        (own / "class2" / file.name).symlink_to(file)
    (tmp_path / "link").symlink_to(own)
    found = data.load(make_config(tmp_path / "link", max_unreadable=0.1))
    for one, other in ((found.train, expected.train), (found.val, expected.val)):
        assert all(torch.equal(a, b) for a, b in zip(load_all(one), load_all(other), strict=True))
    (own / "class2/gone.png").symlink_to("nowhere.png")
    found = data.load(make_config(own, max_unreadable=0.1, cache="disk"))
    assert (len(found.train) + len(found.val), len(found.problems)) == (18, 1)
    assert "class2/gone.png" in found.problems[0]


@pytest.mark.parametrize(
    ("link", "target", "message"),
    [
        ("class0/again", "..", "class0/again is a link to .*own, which contains it: remove the link"),
        ("class0/outside", "../..", "class0/outside is a link to .*, which contains it"),
        ("class0/there", "../class1", "class0/there/back is a link to .*class0, which contains it"),
        ("again", ".", "own/again is a link to .*own, which contains it"),
        ("class2", "nowhere", "own/class2 is a link to .*own/nowhere, which is missing: correct or remove the link"),
        ("class2", "class2", "own/class2 is a link to .*own/class2, which is missing"),
    ],
)
def test_links_in_circles_and_to_nowhere_are_refused(tmp_path: Path, link: str, target: str, message: str) -> None:
    root = make_folder(tmp_path / "own", 2, 4)
    if link == "class0/there":
        (root / "class1/back").symlink_to("../class0")
    (root / link).symlink_to(target)
    with pytest.raises(UserError, match=message):
        data.load(make_config(root))


def test_statistics_are_those_of_the_training_split(tmp_path: Path) -> None:
    make_folder(tmp_path / "own" / "train", 2, 4)
    for name in ("class0", "class1"):
        (tmp_path / "own" / "val" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (255, 255, 255)).save(tmp_path / "own" / "val" / name / "white.png")
    found = data.load(make_config(tmp_path / "own"))
    pixels = load_all(found.train)[0].double() / 255
    assert found.spec.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-9)
    assert found.spec.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("suffix", "mode"), [(".jpg", "RGB"), (".png", "RGBA"), (".png", "P"), (".webp", "RGB"), (".tif", "I;16")]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_all_image_formats_are_decoded(tmp_path: Path, suffix: str, mode: str, channels: int) -> None:
    file = tmp_path / f"grey{suffix}"
    if mode == "I;16":
        Image.fromarray(np.full((50, 40), 100 * 256, np.uint16)).save(file)
    else:
        Image.new("RGB", (40, 50), (100, 100, 100)).convert(mode).save(file)
    pixels = decoding.decode(file, 12, channels)
    assert pixels.shape == (12, 12, channels)
    assert pixels.dtype == np.uint8
    assert abs(pixels.astype(int) - 100).max() <= 3


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("L", (8, 8))
    image.paste(255, (0, 0, 8, 4))  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    image.save(tmp_path / "a.png", exif=exif)
    assert decoding.decode(tmp_path / "a.png", 8, 1)[:, 6:].min() == 255


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_invalid_image_is_unreadable(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "a.png"
    Image.effect_noise((64, 64), 50).save(file)
    file.write_bytes(file.read_bytes()[:200] if content is None else content)
    with pytest.raises(UnreadableError, match="truncated" if content is None else "not an image"):
        decoding.decode(file, 8, 3)


def test_decompression_bomb_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (64, 64)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadableError, match="decompression bomb"):
        decoding.decode(tmp_path / "a.png", 8, 1)


def truncate_images(root: Path, count: int) -> Path:
    """Truncate the first files of the last training class."""
    for number in range(count):
        file = root / "train" / "class1" / f"{number}.png"
        file.write_bytes(file.read_bytes()[:60])
    return root


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_a_few_broken_images_are_skipped(tmp_path: Path, cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "own" / "train", 2, 10)
    make_folder(tmp_path / "own" / "val", 2, 2)
    found = data.load(make_config(truncate_images(tmp_path / "own", 2), cache=cache, max_unreadable=0.1))
    assert len(found.problems) == 2
    assert "class1/0.png" in found.problems[0]
    images, labels = load_all(found.train)
    assert len(images) == (18 if cache == "disk" else 20)
    assert (images.float().mean((1, 2, 3)) // 40 == labels).all(), "wrong label"
    assert capsys.readouterr().err.count("another sample takes its place") == (0 if cache == "disk" else 2)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
def test_images_that_become_unreadable_are_replaced_in_training_and_left_out_of_validation(
    tmp_path: Path, world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """In any process, in any order; each is named and counted once."""
    root = make_folder(tmp_path / "own", 2, 25)
    cfg = make_config(root, max_unreadable=0.1)
    found, again = data.load(cfg), data.load(cfg)
    expected, val_labels = load_all(found.train)[0], load_all(found.val)[1]
    files = [getattr(split, "files") for split in (found.train, found.val)]  # noqa: B009
    for file, change in (
        (files[0][7], Path.unlink),
        (files[0][8], lambda path: path.write_bytes(b"")),
        (files[1][3], Path.unlink),
    ):
        change(file)
    order = [[8, 1], [7, 39], [0, 8], [7, 7]]
    batches = list(Loader(found.train, order, LoaderConfig(), 2, world))
    assert all(
        torch.equal(batch[0], expected[torch.tensor(chosen)])
        for batch, chosen in zip(batches, [[9, 1], [9, 39], [0, 9], [9, 9]], strict=True)
    )
    assert torch.equal(again.train.__getitems__([7])[0], expected[9:10]), "another process, which saw no other index"
    assert torch.equal(load_all(found.val)[1], val_labels[torch.arange(10) != 3])
    assert [int(getattr(split, "unreadable").sum()) for split in (found.train, found.val)] == [2, 1]  # noqa: B009
    said = capfd.readouterr().err
    assert said.count(f"{files[0][8]}: not an image; another sample takes its place") == 2, "once by each"
    assert said.count(f"{files[1][3]}: No such file or directory; it does not count in the validation") == 1
    with pytest.raises(UserError, match=r"^data.cache is 'device': 1 samples cannot be read"):
        cache_on_device(Loader(found.val, [], LoaderConfig(), 0, world), replace(cfg, cache="device"))
    with pytest.raises(UserError, match=f"^no sample of a validation batch can be read, {files[1][3]}: restore"):
        found.val.__getitems__([3])


def make_empty(folder: Path) -> None:
    """Empty a folder, as one on which a disk is no longer mounted."""
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (shutil.rmtree, r"cannot read the folder .*own \(No such file or directory\): restore or mount"),
        (make_empty, r"cannot read the folder .*own \(it is empty\)"),
        (
            OSError(errno.EIO, "Input/output error"),
            r"cannot read .*png \(Input/output error\): check the disk or network",
        ),
        (MemoryError(), "not enough memory to read .*png: use fewer loader.workers"),
    ],
)
def test_failing_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Any, message: str) -> None:
    """It does not count as many unreadable samples."""
    found = data.load(make_config(make_folder(tmp_path / "own", 2, 5), max_unreadable=1.0))
    if isinstance(fail, Exception):
        monkeypatch.setattr(Image, "open", Mock(side_effect=fail))
    else:
        fail(tmp_path / "own")
    with pytest.raises(UserError, match=message):
        found.train.__getitems__([0, 1])


def test_cache_that_disappears_is_an_error(tmp_path: Path) -> None:
    cfg = make_config(make_folder(tmp_path / "own", 2, 5), cache="disk")
    found = data.load(cfg)
    shutil.rmtree(cfg.cache_dir)
    with pytest.raises(UserError, match=r"cannot read the cache .*images.u8 \(No such file.*\): resume, which builds"):
        found.train.__getitems__([0])


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_too_many_broken_images_are_an_error(tmp_path: Path, cache: str) -> None:
    make_folder(tmp_path / "own" / "train", 2, 10)
    make_folder(tmp_path / "own" / "val", 2, 2)
    with pytest.raises(UserError, match=r"class1/0.png.*raise data.max_unreadable=0.05"):
        data.load(make_config(truncate_images(tmp_path / "own", 3), cache=cache))


def test_unwritable_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="set another data.cache_dir"):
        data.load(make_config(make_folder(tmp_path / "own", 2, 5)))


def test_missing_or_empty_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("text")
    for name, message in (("nowhere", "does not exist"), ("file.txt", "is a file"), ("empty", "contains no image")):
        with pytest.raises(UserError, match=f"data.path={tmp_path / name} {message}"):
            data.load(make_config(tmp_path / name))


def test_missing_classes_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"one has fewer than two classes \(class0\)"):
        data.load(make_config(make_folder(tmp_path / "one", 1, 5)))
    (make_folder(tmp_path / "two", 2, 5) / "class2").mkdir()
    with pytest.raises(UserError, match="two has no training image of class2"):
        data.load(make_config(tmp_path / "two"))
    make_folder(tmp_path / "split" / "train", 2, 3)
    make_folder(tmp_path / "split" / "val", 4, 1)
    with pytest.raises(UserError, match="val has images of class2, class3, which .*train does not have"):
        data.load(make_config(tmp_path / "split"))


def test_images_without_labels_need_no_classes(tmp_path: Path) -> None:
    def load(name: str) -> data.Data:
        return data.load(replace(make_config(tmp_path / name), labels=False))

    make_folder(tmp_path / "flat", 1, 6)
    for file in (tmp_path / "flat/class0").iterdir():
        file.rename(tmp_path / "flat" / file.name)
    make_folder(tmp_path / "nested", 2, 5)
    make_folder(tmp_path / "split/train", 2, 3)
    make_folder(tmp_path / "split/val", 3, 1)
    for name, sizes in {"flat": (5, 1), "nested": (8, 2), "split": (6, 3)}.items():
        found = load(name)
        assert ((len(found.train), len(found.val)), found.spec.classes, found.problems) == (sizes, (".",), ())
        assert found.train.labels.tolist() == [0] * sizes[0]
    shutil.rmtree(tmp_path / "split/train")
    (tmp_path / "split/train").mkdir()
    for name, message in {
        "split": "train contains no image",
        "nowhere": "does not exist: give a folder of images",
    }.items():
        with pytest.raises(UserError, match=message):
            load(name)


def test_empty_split_is_an_error(tmp_path: Path) -> None:
    make_folder(tmp_path / "few", 2, 1)
    with pytest.raises(UserError, match="data.val_fraction=0.2 of 2 images leaves none for validation"):
        data.load(make_config(tmp_path / "few"))
    make_folder(tmp_path / "split" / "train", 2, 3)
    (tmp_path / "split" / "val").mkdir()
    with pytest.raises(UserError, match="val contains no image"):
        data.load(make_config(tmp_path / "split"))


def test_small_classes_take_turns_in_validation(tmp_path: Path) -> None:
    """A fifth of 2 images rounds to 0, but a fifth of all images does not."""
    found = data.load(make_config(make_folder(tmp_path / "own", 6, 2)))
    assert len(found.val) == 2
    assert found.train.labels.bincount().min() >= 1
