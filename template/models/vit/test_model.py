"""The vision transformer: positions."""

import pytest
import torch

from ..data import Spec
from ..model import ModelConfig, ViT, build


@pytest.fixture
def net() -> ViT:
    torch.manual_seed(0)
    spec = Spec(
        channels=1,
        size=8,
        classes=tuple("0123456789"),
        mean=(0.3,),
        std=(0.38,),
    )
    return build(ModelConfig(), spec).eval()


@torch.no_grad()
def test_predictions_depend_on_the_positions_of_patches(net: ViT) -> None:
    torch.nn.init.normal_(net.head.weight)
    images = torch.randn(2, 1, 8, 8)
    rolled = images.roll(4, dims=3)
    assert not torch.allclose(
        net.predict(images),
        net.predict(rolled),
        atol=1e-3,
    )
    net.positions.zero_()
    torch.testing.assert_close(
        net.predict(images),
        net.predict(rolled),
        rtol=0,
        atol=1e-4,
    )
