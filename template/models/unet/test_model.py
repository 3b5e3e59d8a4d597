"""The U-Net: resolutions, ignored pixels, and mean IoU."""

import pytest
import torch
import torch.nn.functional as F

from ..data import Spec
from ..model import ModelConfig, UNet, build


@pytest.fixture
def net() -> UNet:
    torch.manual_seed(0)
    spec = Spec(
        channels=1,
        size=32,
        classes=("a", "b", "c"),
        mean=(0.5,),
        std=(0.25,),
    )
    return build(ModelConfig(), spec).eval()


def test_logits_have_the_resolution_of_the_images(net: UNet) -> None:
    logits = net.predict(torch.rand(2, 1, 32, 32))
    assert logits.shape == (2, 3, 32, 32)


def test_iou_is_per_class_and_leaves_out_ignored_pixels(net: UNet) -> None:
    masks = torch.tensor([0, 0, 1, 255])
    predicted = torch.tensor([0, 1, 1, 2])
    table = net.confusion(predicted, masks)
    assert table.tolist() == [
        [1, 1, 0],
        [0, 1, 0],
        [0, 0, 0],
    ]


def test_loss_is_the_mean_over_pixels_that_are_not_ignored(net: UNet) -> None:
    images = torch.randn(2, 1, 32, 32)
    masks = torch.randint(0, 3, (2, 32, 32))
    losses = F.cross_entropy(
        net.predict(images),
        masks,
        reduction="none",
    )
    masks[:, 8:] = 255
    loss, metrics = net(images, masks)
    torch.testing.assert_close(loss, losses[:, :8].mean())
    assert metrics["loss"][1] == 2 * 8 * 32
