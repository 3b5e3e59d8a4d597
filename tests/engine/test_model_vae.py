"""The autoencoder: likelihood and ELBO against plain formulas."""

import math
from unittest.mock import Mock

import pytest
import torch
from engine import Package, images_of

MODEL = "vae"


def test_probabilities_are_those_of_the_logistic_distribution(
    p: Package,
) -> None:
    location = 0.2
    scale = 0.3
    half = 0.5 / (255 * 0.38)
    levels = torch.tensor([1.0, 60.0, 254.0])
    x = (levels / 255 - 0.3) / 0.38
    cdf = ((torch.stack([x + half, x - half]).double() - location) / scale).sigmoid()
    arguments = (torch.tensor(location), torch.tensor(math.log(scale)), torch.tensor(half))
    logs = p.model.log_probability(x, levels, *arguments)
    torch.testing.assert_close(
        logs.double(),
        (cdf[0] - cdf[1]).log(),
        rtol=1e-4,
        atol=1e-4,
    )


@torch.no_grad()
def test_elbo_is_below_the_likelihood(p: Package) -> None:
    """Estimated by importance sampling: Burda et al. 2015, arXiv:1509.00519, theorem 1."""
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
    torch.testing.assert_close(
        elbo,
        (logs + ratio).mean(),
        rtol=1e-2,
        atol=0.3,
    )
    assert elbo < likelihood


def test_noise_of_a_large_image_is_selected_by_each_level(
    p: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of its levels is odd and above 2 ** 24, so fp32 cannot represent it."""
    net = p.model.build(p.model.ModelConfig(), images_of(p, 160)).eval()
    torch.nn.init.zeros_(net.to_latent.weight)  # so that the latents are the noise
    torch.nn.init.zeros_(net.to_latent.bias)
    levels = torch.full((1, 3, 160, 160), 255.0)
    levels[0, 0, 0, 0] = 254
    pixels = Mock(wraps=net.pixels)
    monkeypatch.setattr(net, "pixels", pixels)
    with torch.no_grad():
        net((levels / 255 - 0.5) / 0.25, torch.zeros(1))
    draw = (3 * 160 * 160 * 255 - 1) % 64
    assert torch.equal(pixels.call_args.args[0][0], net.draws[draw])
