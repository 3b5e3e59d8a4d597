"""The residual network: initialization and label smoothing."""

import pytest
import torch
import torch.nn.functional as F

from ..data import Spec
from ..model import ModelConfig, ResNet, build


@pytest.fixture
def net() -> ResNet:
    torch.manual_seed(0)
    cfg = ModelConfig(label_smoothing=0.2)
    spec = Spec(
        channels=1,
        size=8,
        classes=("a", "b"),
        mean=(0.5,),
        std=(0.2,),
    )
    return build(cfg, spec)


def test_block_starts_as_the_identity(net: ResNet) -> None:
    x = torch.rand(2, 32, 8, 8)
    block = net.blocks[0]
    torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize("training", [False, True])
def test_labels_are_smoothed_in_training_only(net: ResNet, training: bool) -> None:
    net.train(training)
    images = torch.rand(4, 1, 8, 8)
    labels = torch.tensor([0, 1, 0, 1])
    loss, _ = net(images, labels)
    expected = F.cross_entropy(
        net.predict(images),
        labels,
        label_smoothing=0.2 if training else 0.0,
    )
    torch.testing.assert_close(loss, expected)
