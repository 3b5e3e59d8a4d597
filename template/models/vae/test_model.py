"""The autoencoder: likelihood, noise of the validation, and new images."""

import pytest
import torch
from torch import Tensor

from ..data import Spec
from ..model import VAE, ModelConfig, build, log_probability

MEAN = 0.3
STD = 0.38


@pytest.fixture
def net() -> VAE:
    torch.manual_seed(0)
    spec = Spec(
        channels=1,
        size=8,
        classes=("a", "b"),
        mean=(MEAN,),
        std=(STD,),
    )
    net = build(ModelConfig(), spec).eval()
    torch.nn.init.normal_(net.head.weight, std=0.05)
    return net


@pytest.fixture
def images() -> Tensor:
    levels = torch.randint(0, 256, (6, 1, 8, 8))
    return (levels / 255 - MEAN) / STD


@pytest.mark.parametrize("log_scale", [-7.0, -0.6, 1.0])
def test_probabilities_of_levels_sum_to_one(log_scale: float) -> None:
    levels = torch.arange(256.0)
    logs = log_probability(
        x=(levels / 255 - MEAN) / STD,
        levels=levels,
        location=torch.tensor(0.4),
        log_scale=torch.tensor(log_scale),
        half=torch.tensor(0.5 / (255 * STD)),
    )
    total = logs.double().exp().sum()
    assert total.item() == pytest.approx(1, abs=1e-4)


@torch.no_grad()
def test_validation_does_not_depend_on_the_batch(net: VAE, images: Tensor) -> None:
    labels = torch.zeros(6)
    _, metrics = net(images, labels)
    total = 0.0
    for image in images.split(1):
        _, alone = net(image, labels[:1])
        total += alone["loss"][0].item()
    together = metrics["loss"][0].item()
    assert together == pytest.approx(total, rel=1e-4)


@torch.no_grad()
def test_new_images_follow_the_generator(net: VAE) -> None:
    first = net.sample(
        5,
        torch.Generator().manual_seed(1),
    )
    again = net.sample(
        5,
        torch.Generator().manual_seed(1),
    )
    assert first.shape == (5, 1, 8, 8)
    assert torch.equal(first, again)
    assert 0 <= first.min() <= first.max() <= 1
