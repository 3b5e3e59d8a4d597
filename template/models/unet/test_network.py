"""The U-Net: parameter count, resolutions, metrics, ignored pixels and config errors.

Delete this file together with the example's model.py: nothing else needs it.
"""

from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build

pytestmark = pytest.mark.fast


def spec_of(classes: int, size: int = 32, channels: int = 1, ignore: int | None = None) -> Spec:
    names = tuple(map(str, range(classes)))
    counts = (1,) * classes
    return Spec(channels, size, names, tuple(range(classes)), ignore, counts, (0.5,) * channels, (0.25,) * channels)


def test_base_size_has_the_known_parameter_count() -> None:
    """31,037,633, as in a widely used PyTorch implementation for RGB input and one class.

    By hand, for width w: two 3 x 3 convolutions without bias from a to w have 9w(a + w) weights, and their norms 4w.
    - Down, from 3 to 64, 64 to 128, ... 512 to 1024: 9 * 64 * 67 + 9 * (128 * 192 + ... + 1024 * 1536) + 4 * 1984.
    - Up, each from 2w to w at 512, 256, 128, 64: 27w^2 + 4w, and before each a 2 x 2 from 2w to w with bias, 8w^2 + w.
    - The head: 64 weights and one bias per class.
    """
    down = 9 * 64 * 67 + 9 * sum(w * (w // 2 + w) for w in (128, 256, 512, 1024)) + 4 * 1984
    up = sum(27 * w**2 + 4 * w + 8 * w**2 + w for w in (512, 256, 128, 64))
    assert down + up + 65 == 31_037_633
    with torch.device("meta"):
        net = build(ModelConfig(size="base"), spec_of(1, 512, 3))
    assert sum(parameter.numel() for parameter in net.parameters()) == 31_037_633
    assert net.predict(torch.empty(2, 3, 512, 512, device="meta")).shape == (2, 1, 512, 512)


def test_blocks_are_the_contracting_and_expanding_path() -> None:
    net = build(ModelConfig(width=8, depth=3), spec_of(5))
    shapes: list[tuple[int, ...]] = []
    for block in net.blocks:
        block.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    net.predict(torch.rand(1, 1, 32, 32))
    assert shapes == [(8, 32, 32), (16, 16, 16), (32, 8, 8), (64, 4, 4), (32, 8, 8), (16, 16, 16), (8, 32, 32)]


def test_skip_connections_carry_detail() -> None:
    """The output depends on the pixels even when the up-convolutions are zero."""
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(3)).eval()
    images = torch.rand(1, 1, 32, 32)
    with torch.no_grad():
        for up in net.ups:
            up.get_parameter("weight").zero_()
        logits = net.predict(images)
    assert logits.std((2, 3)).min() > 1e-3


def test_metrics_equal_those_of_scikit_learn() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(6, ignore=255)).eval()
    images, masks = torch.randn(3, 1, 32, 32), torch.randint(0, 4, (3, 32, 32))
    masks[:, :5] = 255
    with torch.no_grad():
        net.head.get_parameter("bias")[5] = -1e6  # class 5 neither occurs nor is predicted
        predicted, (_, metrics) = net.predict(images).argmax(1), net(images, masks)
    y_true, y_pred = masks[masks != 255].numpy(), predicted[masks != 255].numpy()
    hits, unions = metrics["iou"]
    present = unions > 0
    assert present.tolist()[-1] is False
    expected = jaccard_score(y_true, y_pred, average="macro", labels=present.nonzero().flatten().numpy())
    assert (hits[present] / unions[present]).mean().item() == pytest.approx(expected, rel=1e-6)
    correct, count = metrics["accuracy"]
    assert int(correct) / int(count) == pytest.approx(accuracy_score(y_true, y_pred))


def test_ignored_pixels_do_not_change_the_weight_of_others() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(3, ignore=255)).eval()
    images, masks = torch.randn(2, 1, 32, 32), torch.randint(0, 3, (2, 32, 32))
    with torch.no_grad():
        logits = net.predict(images).double()
    part = torch.nn.functional.cross_entropy(logits, masks, reduction="none")[:, :8].sum() / masks.numel()
    masks[:, 8:] = 255
    loss, _ = net(images, masks)
    assert loss.item() == pytest.approx(part.item(), rel=1e-5)
    masks[:] = 255
    loss, metrics = net(images, masks)
    assert loss.item() == 0
    assert int(metrics["accuracy"][1]) == 0
    assert not metrics["iou"][1].any()


@pytest.mark.parametrize(("size", "depth", "nearest"), [(30, 2, 32), (100, 4, 96), (8, 4, 16)])
def test_indivisible_size_is_an_error(size: int, depth: int, nearest: int) -> None:
    message = f"data.size is {size}: .*multiple of {2**depth}; the nearest is {nearest}"
    with pytest.raises(UserError, match=message):
        build(ModelConfig(depth=depth), spec_of(3, size))


def test_dropout_acts_only_in_training() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(dropout=0.5), spec_of(3))
    images = torch.rand(2, 1, 32, 32)
    assert not torch.equal(net.predict(images), net.predict(images))
    net.eval()
    assert torch.equal(net.predict(images), net.predict(images))


@pytest.mark.parametrize(("values", "key"), [({"width": 12}, "width"), ({"depth": 11}, "depth")])
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)
