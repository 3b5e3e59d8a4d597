"""Image segmentation data: built-in canvases, preparation, your own folders, and errors.

Delete this file and test_readers.py together with the example's data.py: nothing else needs them.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data
from ..errors import UserError
from ..tools import view

pytestmark = pytest.mark.fast

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
