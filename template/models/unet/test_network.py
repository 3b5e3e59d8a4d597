"""The U-Net: its base size is the paper's, each pixel is told apart, and its metrics are scikit-learn's."""

from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build


def spec_of(classes: int, size: int = 32, channels: int = 1, ignore: int | None = None) -> Spec:
    names = tuple(map(str, range(classes)))
    counts = (1,) * classes
    return Spec(channels, size, names, tuple(range(classes)), ignore, counts, (0.5,) * channels, (0.25,) * channels)


def test_the_base_size_has_the_known_count() -> None:
    """31,037,633, as the widely used PyTorch version has for RGB in and one map out, and "about 31 million" elsewhere.

    By hand, of a width w: two 3 x 3 convolutions without bias from a to w have 9w(a + w) weights, and their norms 4w.
    - Down, from 3 to 64, 64 to 128, ... 512 to 1024: 9 * 64 * 67 + 9 * (128 * 192 + ... + 1024 * 1536) + 4 * 1984.
    - Up, each from 2w to w at 512, 256, 128, 64: 27w^2 + 4w, and before each a 2 x 2 from 2w to w with bias, 8w^2 + w.
    - The head: 64 weights and a bias a class.
    """
    down = 9 * 64 * 67 + 9 * sum(w * (w // 2 + w) for w in (128, 256, 512, 1024)) + 4 * 1984
    up = sum(27 * w**2 + 4 * w + 8 * w**2 + w for w in (512, 256, 128, 64))
    assert down + up + 65 == 31_037_633
    with torch.device("meta"):
        net = build(ModelConfig(size="base"), spec_of(1, 512, 3))
    assert sum(parameter.numel() for parameter in net.parameters()) == 31_037_633
    assert net.predict(torch.empty(2, 3, 512, 512, device="meta")).shape == (2, 1, 512, 512)


def test_the_blocks_are_the_way_down_and_up() -> None:
    net = build(ModelConfig(width=8, depth=3), spec_of(5))
    shapes: list[tuple[int, ...]] = []
    for block in net.blocks:
        block.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    net.predict(torch.rand(1, 1, 32, 32))
    assert shapes == [(8, 32, 32), (16, 16, 16), (32, 8, 8), (64, 4, 4), (32, 8, 8), (16, 16, 16), (8, 32, 32)]


def test_detail_passes_by_the_bottom() -> None:
    """With nothing from below, the way up still sees the pixels: the connections are there."""
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(3)).eval()
    images = torch.rand(1, 1, 32, 32)
    with torch.no_grad():
        for up in net.ups:
            up.get_parameter("weight").zero_()
        scores = net.predict(images)
    assert scores.std((2, 3)).min() > 1e-3


def test_metrics_are_those_of_scikit_learn() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(6, ignore=255)).eval()
    images, masks = torch.randn(3, 1, 32, 32), torch.randint(0, 4, (3, 32, 32))
    masks[:, :5] = 255
    with torch.no_grad():
        net.head.get_parameter("bias")[5] = -1e6  # class 5 is nowhere, neither there nor predicted
        predicted, (_, metrics) = net.predict(images).argmax(1), net(images, masks)
    true, said = masks[masks != 255].numpy(), predicted[masks != 255].numpy()
    hits, unions = metrics["iou"]
    there = unions > 0
    assert there.tolist()[-1] is False
    theirs = jaccard_score(true, said, average="macro", labels=there.nonzero().flatten().numpy())
    assert (hits[there] / unions[there]).mean().item() == pytest.approx(theirs, rel=1e-6)
    right, count = metrics["accuracy"]
    assert int(right) / int(count) == pytest.approx(accuracy_score(true, said))


def test_an_ignored_pixel_gives_no_gradient_and_takes_none_from_the_others() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(3, ignore=255)).eval()
    images, masks = torch.randn(2, 1, 32, 32), torch.randint(0, 3, (2, 32, 32))
    with torch.no_grad():
        scores = net.predict(images).double()
    part = torch.nn.functional.cross_entropy(scores, masks, reduction="none")[:, :8].sum() / masks.numel()
    masks[:, 8:] = 255
    loss, _ = net(images, masks)
    assert loss.item() == pytest.approx(part.item(), rel=1e-5)
    masks[:] = 255
    loss, metrics = net(images, masks)
    assert loss.item() == 0
    assert int(metrics["accuracy"][1]) == 0
    assert not metrics["iou"][1].any()


@pytest.mark.parametrize(("size", "depth", "nearest"), [(30, 2, 32), (100, 4, 96), (8, 4, 16)])
def test_a_size_that_does_not_halve_is_refused(size: int, depth: int, nearest: int) -> None:
    message = f"data.size is {size}: .*multiple of {2**depth}; the nearest is {nearest}"
    with pytest.raises(UserError, match=message):
        build(ModelConfig(depth=depth), spec_of(3, size))


def test_dropout_acts_in_training_alone() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(dropout=0.5), spec_of(3))
    images = torch.rand(2, 1, 32, 32)
    assert not torch.equal(net.predict(images), net.predict(images))
    net.eval()
    assert torch.equal(net.predict(images), net.predict(images))


@pytest.mark.parametrize(("values", "key"), [({"width": 12}, "width"), ({"depth": 11}, "depth")])
def test_sizes_that_cannot_be(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)
