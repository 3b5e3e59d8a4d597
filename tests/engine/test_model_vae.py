"""The autoencoder: likelihood and ELBO against plain formulas, and the recipe against a baseline."""

import math
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

MARGIN = 0.5
"""Minimum bits per dimension by which the recipe must beat the baseline."""


def levels_of(split: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    found: Tensor = split.__getitems__(list(range(len(split))))[0]
    return found.flatten(1).double().numpy()


def gaussian_bits(train: np.ndarray[Any, Any], val: np.ndarray[Any, Any], minimum: float) -> float:
    """Bits per dimension of a discretized Gaussian per pixel, with the mean and deviation of train."""
    mean, std = train.mean(0), np.maximum(train.std(0), minimum)
    below, above = ((val + shift - mean) / std for shift in (-0.5, 0.5))
    # Computed on the side of the mean where the tails are small, to avoid cancellation.
    sign = np.where(below > 0, -1, 1)
    low = np.where(
        sign > 0, np.where(val == 0, -np.inf, below), np.where(val == 255, -np.inf, -above)
    )
    high = np.where(
        sign > 0, np.where(val == 255, np.inf, above), np.where(val == 0, np.inf, -below)
    )
    tail = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))
    return float(-np.log2(np.maximum(tail(high) - tail(low), 1e-300)).mean())


def test_expected_result_beats_a_gaussian_per_pixel(package: Callable[[str], Any]) -> None:
    """With the minimum deviation of constant pixels tuned on the validation images, in favor of the baseline."""
    p = package("vae")
    train, val, _ = p.data.load(p.data.DataConfig())
    baseline = min(
        gaussian_bits(levels_of(train), levels_of(val), minimum) for minimum in (1, 4, 16, 32)
    )
    recipe = (p.root / "configs" / "default.yaml").read_text()
    expected = re.search(r"^# Expect: bits_per_dim < ([\d.]+)", recipe, re.MULTILINE)
    assert expected is not None
    assert float(expected[1]) <= baseline - MARGIN


def test_probabilities_are_those_of_the_logistic_distribution(
    package: Callable[[str], Any],
) -> None:
    location, scale, half = 0.2, 0.3, 0.5 / (255 * 0.38)
    levels = torch.tensor([1.0, 60.0, 254.0])
    x = (levels / 255 - 0.3) / 0.38
    cdf = ((torch.stack([x + half, x - half]).double() - location) / scale).sigmoid()
    arguments = (torch.tensor(location), torch.tensor(math.log(scale)), torch.tensor(half))
    logs = package("vae").model.log_probability(x, levels, *arguments)
    torch.testing.assert_close(logs.double(), (cdf[0] - cdf[1]).log(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_elbo_is_below_the_likelihood(package: Callable[[str], Any]) -> None:
    """Estimated by importance sampling: Burda et al. 2015, arXiv:1509.00519, theorem 1."""
    p = package("vae")
    _, val, spec = p.data.load(p.data.DataConfig())
    images, labels = p.data.Prepare(spec, p.data.DataConfig())(
        val.__getitems__([0]), False, torch.Generator()
    )
    torch.manual_seed(0)
    net = p.model.build(p.model.ModelConfig(), spec)
    torch.nn.init.normal_(net.head.weight, std=0.05)
    many = images.expand(1000, -1, -1, -1)
    mean, log_variance = net.encode(images)
    noise = torch.randn(1000, mean.shape[1])
    latents = mean + (log_variance / 2).exp() * noise
    levels = ((many * net.std + net.mean) * 255).round()
    logs = (
        p.model.log_probability(many, levels, *net.pixels(latents), 0.5 / (255 * net.std))
        .flatten(1)
        .sum(1)
    )
    ratio = 0.5 * (noise**2 - latents**2 + log_variance).sum(1)
    likelihood = (logs + ratio).logsumexp(0) - math.log(1000)
    total, count = net.train()(many, labels.expand(1000))[1]["bits_per_dim"]
    elbo = -total / count * math.log(2) * images[0].numel()
    torch.testing.assert_close(elbo, (logs + ratio).mean(), rtol=1e-2, atol=0.3)
    assert elbo < likelihood


def test_noise_of_a_large_image_is_selected_by_each_level(
    package: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of its levels is odd and above 2 ** 24, so fp32 cannot represent it."""
    p = package("vae")
    net = p.model.build(
        p.model.ModelConfig(), p.data.Spec(3, 160, ("a",), (0.5,) * 3, (0.25,) * 3)
    ).eval()
    torch.nn.init.zeros_(net.to_latent.weight)  # so that the latents are the noise
    torch.nn.init.zeros_(net.to_latent.bias)
    levels = torch.full((1, 3, 160, 160), 255.0)
    levels[0, 0, 0, 0] = 254
    pixels = Mock(wraps=net.pixels)
    monkeypatch.setattr(net, "pixels", pixels)
    with torch.no_grad():
        net((levels / 255 - 0.5) / 0.25, torch.zeros(1))
    assert torch.equal(pixels.call_args.args[0][0], net.draws[(3 * 160 * 160 * 255 - 1) % 64])


def test_loss_is_fp32_under_autocast(package: Callable[[str], Any]) -> None:
    p = package("vae")
    torch.manual_seed(0)
    spec = p.data.Spec(1, 8, ("a",), (0.3,), (0.38,))
    net = p.model.build(p.model.ModelConfig(), spec).eval()
    torch.nn.init.normal_(net.head.weight, std=0.05)
    images = (torch.randint(0, 256, (4, 1, 8, 8)) / 255 - 0.3) / 0.38
    with torch.no_grad():
        expected, _ = net(images, torch.zeros(4))
        with torch.autocast("cpu", torch.bfloat16):
            loss, metrics = net(images, torch.zeros(4))
    assert loss.dtype == torch.float32
    assert all(total.dtype == torch.float32 for total, _ in metrics.values())
    torch.testing.assert_close(loss, expected, rtol=0.02, atol=0.02)
