"""The linear classifier."""

import torch

from ..data import DataConfig, load
from ..model import ModelConfig, build


def test_scores_are_scaled() -> None:
    spec = load(DataConfig())[2]
    images = torch.randn(
        4,
        spec.channels,
        spec.size,
        spec.size,
    )
    labels = torch.arange(4)
    net = build(ModelConfig(scale=0.0), spec)
    assert abs(net(images, labels)[0].item() - torch.tensor(10.0).log().item()) < 1e-6
