"""The U-Net: parameter count, resolutions, ignored pixels, mean IoU."""

import pytest
import torch

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build


def spec_of(classes: int, size: int = 32, channels: int = 1) -> Spec:
    return Spec(
        channels, size, tuple(map(str, range(classes))), (0.5,) * channels, (0.25,) * channels
    )


def test_base_size_has_the_known_parameter_count() -> None:
    """31,037,633, as in a widely used PyTorch implementation for RGB input and one class."""
    with torch.device("meta"):
        net = build(ModelConfig(size="base"), spec_of(1, 512, 3))
    assert sum(weight.numel() for weight in net.parameters()) == 31_037_633
    assert net.predict(torch.empty(2, 3, 512, 512, device="meta")).shape == (2, 1, 512, 512)


def test_blocks_are_the_contracting_and_expanding_path() -> None:
    net = build(ModelConfig(width=8, depth=2), spec_of(5))
    shapes: list[tuple[int, ...]] = []
    for block in net.blocks:
        block.register_forward_hook(
            lambda module, inputs, output: shapes.append(tuple(output.shape[1:]))
        )
    net.predict(torch.rand(1, 1, 32, 32))
    assert shapes == [(8, 32, 32), (16, 16, 16), (32, 8, 8), (16, 16, 16), (8, 32, 32)]


def test_iou_is_per_class_and_leaves_out_ignored_pixels() -> None:
    net = build(ModelConfig(), spec_of(3)).eval()
    masks = torch.tensor([0, 0, 1, 255]).view(1, 2, 2)
    predicted = torch.tensor([0, 1, 1, 2]).view(1, 2, 2)
    scores = torch.nn.functional.one_hot(predicted, 3).permute(0, 3, 1, 2).float()
    net.predict = lambda images: scores  # type: ignore[method-assign]
    _, metrics = net(torch.empty(1, 1, 2, 2), masks)
    hits, unions = metrics["iou"]
    assert (hits.tolist(), unions.tolist()) == ([1, 1, 0], [2, 2, 0])
    assert [int(value) for value in metrics["accuracy"]] == [2, 3]


def test_ignored_pixels_do_not_change_the_weight_of_others() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(3)).eval()
    images, masks = torch.randn(2, 1, 32, 32), torch.randint(0, 3, (2, 32, 32))
    with torch.no_grad():
        logits = net.predict(images).double()
    part = (
        torch.nn.functional.cross_entropy(logits, masks, reduction="none")[:, :8].sum()
        / masks.numel()
    )
    masks[:, 8:] = 255
    assert net(images, masks)[0].item() == pytest.approx(part.item(), rel=1e-5)


@pytest.mark.parametrize(("size", "depth", "nearest"), [(30, 2, 32), (100, 4, 96)])
def test_indivisible_size_is_an_error(size: int, depth: int, nearest: int) -> None:
    with pytest.raises(
        UserError, match=rf"data.size is {size}: .*multiple of {2**depth}; the nearest is {nearest}"
    ):
        build(ModelConfig(depth=depth), spec_of(3, size))
