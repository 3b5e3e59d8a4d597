"""Image classification data: built-in digits, preparation, your own folders, and errors.

Delete this file and test_readers.py together with the example's data.py: nothing else needs them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import datasets
from torch.utils._python_dispatch import TorchDispatchMode

from .. import data
from ..readers.digits import load_digits
from ..tools import view

pytestmark = pytest.mark.fast


def make_folder(root: Path, classes: int, images: int) -> Path:
    """Make a folder of color noise, with one subfolder per class and a different brightness for each."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(images):
            pixels = rng.integers(40 * label, 40 * label + 40, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{number}.png")
    return root


def make_config(root: Path, **values: Any) -> data.DataConfig:
    return data.DataConfig(path=root, **{"size": 16, "cache_dir": root.parent / "cache", **values})


def load_all(split: data.Samples) -> data.Batch:
    return split.__getitems__(list(range(len(split))))


def test_built_in_digits_equal_those_of_scikit_learn() -> None:
    images, labels = load_digits()
    expected = datasets.load_digits()
    assert np.array_equal(images.numpy(), (expected.images * (255 / 16)).round().astype(np.uint8))
    assert np.array_equal(labels.numpy(), expected.target)
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)


def test_every_digit_is_in_one_split() -> None:
    found = data.load(data.DataConfig())
    assert len(found.train) + len(found.val) == 1797
    assert (found.spec.channels, found.spec.size, len(found.spec.classes)) == (1, 8, 10)
    images, labels = found.train.__getitems__([5, 3])
    assert (images.dtype, images.shape, labels.shape) == (torch.uint8, (2, 1, 8, 8), (2,))
    train = {bytes(image.numpy()) for image in load_all(found.train)[0]}
    assert len(train) > 1400


def test_prepare_normalizes_and_shifts_only_in_training() -> None:
    cfg = data.DataConfig()
    found = data.load(cfg)
    batch = load_all(found.train)
    prepare = data.Prepare(found.spec, cfg)
    unshifted, _ = prepare(batch, False, torch.default_generator)
    assert unshifted.mean().item() == pytest.approx(0, abs=1e-4)
    assert unshifted.std().item() == pytest.approx(1, abs=1e-4)
    shifted, again = (prepare(batch, True, torch.Generator().manual_seed(1))[0] for _ in range(2))
    assert torch.equal(shifted, again)
    assert not torch.equal(shifted, unshifted)


def test_shift_moves_images_by_whole_pixels() -> None:
    images = torch.zeros(64, 1, 5, 5)
    images[:, :, 2, 2] = 1
    positions = data.shift(images, 1, torch.Generator().manual_seed(0)).flatten(1).argmax(1)
    rows, columns = positions // 5, positions % 5
    assert set(rows.tolist()) == set(columns.tolist()) == {1, 2, 3}


def test_crops_are_of_the_configured_area_and_inside_the_image() -> None:
    across = torch.linspace(-1 + 1 / 64, 1 - 1 / 64, 64)  # the coordinates of the pixels
    images = torch.stack(torch.meshgrid(across, across, indexing="xy")).expand(256, 2, 64, 64)
    cropped = data.random_resized_crop(images, 0.25, torch.Generator().manual_seed(0))
    width = (cropped[:, 0, 32, 48] - cropped[:, 0, 32, 16]) * 2  # of the middle half, which no border cuts
    height = (cropped[:, 1, 48, 32] - cropped[:, 1, 16, 32]) * 2
    area, aspect = width * height / 4, width / height
    assert 0.24 < area.min() < 0.3
    assert 0.9 < area.max() <= 1.01
    assert 0.74 < aspect.min() < 0.8
    assert 1.25 < aspect.max() < 1.35
    assert cropped.abs().max() <= images.abs().max()
    again = data.random_resized_crop(images, 0.25, torch.Generator().manual_seed(0))
    assert torch.equal(cropped, again)


def test_mixup_blends_images_and_labels_with_one_weight() -> None:
    images, probabilities = torch.eye(8).view(8, 1, 2, 4), torch.eye(8)  # each image shows its label
    mixed, labels = data.mixup(images, probabilities, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(mixed.view(8, 8), labels)
    assert torch.allclose(labels.sum(1), torch.ones(8))
    assert torch.equal(labels.argmax(1), torch.arange(8)), "an image keeps at least half of its label"
    assert 0.5 <= labels.max(1).values.min() < 0.9


class NoReading(TorchDispatchMode):
    """Fails where the host reads a value of a tensor, also inside torch's own functions."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in func.name()
        return func(*args, **(kwargs or {}))


def test_augmentation_reads_no_value_on_the_host() -> None:
    cfg = data.DataConfig(crop=0.3, mixup=0.5)
    found = data.load(cfg)
    prepare, batch = data.Prepare(found.spec, cfg), found.train.__getitems__([0, 1, 2])
    with NoReading():  # type: ignore[no-untyped-call]
        _, labels = prepare(batch, True, torch.default_generator)
    torch.testing.assert_close(labels.sum(1), torch.ones(3))


def test_crop_and_mixup_act_only_in_training() -> None:
    cfg = data.DataConfig(crop=0.3, mixup=0.5)
    found = data.load(cfg)
    batch, prepare = found.train.__getitems__(list(range(16))), data.Prepare(found.spec, cfg)
    images, labels = prepare(batch, True, torch.Generator().manual_seed(0))
    assert (images.shape, labels.shape) == ((16, 1, 8, 8), (16, 10))
    plain = data.Prepare(found.spec, data.DataConfig())(batch, False, torch.default_generator)
    kept = prepare(batch, False, torch.default_generator)
    assert torch.equal(kept[0], plain[0])
    assert torch.equal(kept[1], batch[1])


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_image_folder_is_split_within_each_class(tmp_path: Path, cache: str) -> None:
    found = data.load(make_config(make_folder(tmp_path / "own", 3, 10), cache=cache))
    assert found.spec.classes == ("class0", "class1", "class2")
    assert found.train.labels.bincount().tolist() == [8, 8, 8]
    assert found.val.labels.bincount().tolist() == [2, 2, 2]
    images, labels = found.val.__getitems__([5, 0, 3])
    assert (images.shape, images.dtype, labels.dtype) == ((3, 3, 16, 16), torch.uint8, torch.int64)
    assert labels.tolist() == [2, 0, 1]
    assert (images.float().mean((1, 2, 3)) // 40).tolist() == [2, 0, 1], "wrong label"
    all_images = torch.cat([load_all(found.train)[0], load_all(found.val)[0]])
    assert len({bytes(image.numpy()) for image in all_images}) == 30


def test_summary_and_plot(tmp_path: Path) -> None:
    found = data.load(make_config(make_folder(tmp_path / "own", 2, 5)))
    summary = view.summary(found)
    assert (summary["shape"], summary["train classes"]) == ("3 x 16 x 16", "class0: 4, class1: 4")
    batch = data.Prepare(found.spec, data.DataConfig())(load_all(found.val), False, torch.Generator())
    figure = view.plot(batch, found.spec)
    plotted = [torch.from_numpy(axes.get_images()[0].get_array()) for axes in figure.axes]
    torch.testing.assert_close(torch.stack(plotted).permute(0, 3, 1, 2) * 255, load_all(found.val)[0].float())
