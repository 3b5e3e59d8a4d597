"""The diffusion model: noise and times, and the sampler."""

import pytest
import torch
from torch import Tensor

from ..data import Spec
from ..model import ModelConfig, UNet, build


@pytest.fixture
def net() -> UNet:
    torch.manual_seed(0)
    spec = Spec(
        channels=1,
        size=8,
        classes=("a",),
        mean=(0.5,),
        std=(0.1,),
    )
    net = build(ModelConfig(), spec).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return net


def test_new_images_have_the_distribution_of_the_data(
    net: UNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler follows the exact velocities of independent Gaussian pixels."""
    mean = 0.6  # of prepared images
    std = 0.8

    def exact(points: Tensor, times: Tensor) -> Tensor:
        time = times.view(-1, 1, 1, 1)
        variance = time**2 * std**2 + (1 - time) ** 2
        slope = (time * std**2 - (1 - time)) / variance
        return mean + slope * (points - time * mean)

    monkeypatch.setattr(net, "predict", exact)
    generator = torch.Generator().manual_seed(0)
    images = net.sample(1000, generator)
    new_mean = (images.mean().item() - 0.5) / 0.1
    new_std = images.std().item() / 0.1
    assert new_mean == pytest.approx(mean, abs=0.02)
    assert new_std == pytest.approx(std, abs=0.02)


@torch.no_grad()
def test_validation_does_not_depend_on_the_batch(net: UNet) -> None:
    images = torch.randn(6, 1, 8, 8)
    labels = torch.zeros(6)
    _, metrics = net(images, labels)
    total = 0.0
    for image in images.split(1):
        _, alone = net(image, labels[:1])
        total += alone["loss"][0].item()
    together = metrics["loss"][0].item()
    assert together == pytest.approx(total, rel=1e-4)


@torch.no_grad()
def test_velocities_depend_on_the_time(net: UNet) -> None:
    images = torch.randn(3, 1, 8, 8)
    early = net.predict(images, torch.zeros(3))
    late = net.predict(images, torch.ones(3))
    assert not torch.allclose(early, late)
