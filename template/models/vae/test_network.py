"""The autoencoder: likelihood, ELBO, metrics and config errors.

Delete this file together with the example's model.py: nothing else needs it.
"""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from .. import data
from ..config import parse
from ..data import DataConfig, Prepare, Spec
from ..errors import UserError
from ..model import ModelConfig, build, log_probability
from .conftest import ROOT

pytestmark = pytest.mark.fast

MARGIN = 0.5
"""Minimum bits per dimension by which the recipe must beat the baseline."""
DIGITS = Spec(1, 8, tuple("0123456789"), (0.3,), (0.38,))


def images_of(split: data.Samples) -> np.ndarray[Any, np.dtype[np.float64]]:
    levels = split.__getitems__(list(range(len(split))))[0]
    return levels.flatten(1).double().numpy()


def gaussian_bits(train: np.ndarray[Any, Any], val: np.ndarray[Any, Any], minimum: float) -> float:
    """Bits per dimension of a discretized Gaussian per pixel, with the mean and deviation of train."""
    mean, std = train.mean(0), np.maximum(train.std(0), minimum)
    below, above = ((val + shift - mean) / std for shift in (-0.5, 0.5))
    # Computed on the side of the mean where the tails are small, to avoid cancellation.
    sign = np.where(below > 0, -1, 1)
    low = np.where(sign > 0, np.where(val == 0, -np.inf, below), np.where(val == 255, -np.inf, -above))
    high = np.where(sign > 0, np.where(val == 255, np.inf, above), np.where(val == 0, np.inf, -below))
    tail = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))
    return float(-np.log2(np.maximum(tail(high) - tail(low), 1e-300)).mean())


def test_expected_result_beats_a_gaussian_per_pixel() -> None:
    """With the minimum deviation of constant pixels tuned on the validation images, in favor of the baseline."""
    found = data.load(DataConfig())
    baseline = min(gaussian_bits(images_of(found.train), images_of(found.val), minimum) for minimum in (1, 4, 16, 32))
    recipe = (ROOT / "configs" / "default.yaml").read_text()
    expected = re.search(r"^# Expect: bits_per_dim < ([\d.]+)", recipe, re.MULTILINE)
    assert expected is not None, "configs/default.yaml has no line '# Expect: bits_per_dim < X'"
    assert float(expected[1]) <= baseline - MARGIN


@pytest.mark.parametrize(("location", "log_scale"), [(0.0, -0.6), (-3.0, 1.0), (0.4, -7.0), (2.0, -3.0)])
def test_probabilities_of_levels_sum_to_one(location: float, log_scale: float) -> None:
    mean, std = 0.3, 0.38
    levels = torch.arange(256.0)
    x = (levels / 255 - mean) / std
    logs = log_probability(x, levels, torch.tensor(location), torch.tensor(log_scale), torch.tensor(0.5 / (255 * std)))
    assert logs.isfinite().all()
    assert logs.double().exp().sum().item() == pytest.approx(1, abs=1e-4)


def test_probabilities_are_those_of_the_logistic_distribution() -> None:
    """Compared with the plain formula in double precision."""
    location, scale, half = 0.2, 0.3, 0.5 / (255 * 0.38)
    levels = torch.tensor([1.0, 60.0, 254.0])
    x = (levels / 255 - 0.3) / 0.38
    cdf = ((torch.stack([x + half, x - half]).double() - location) / scale).sigmoid()
    logs = log_probability(x, levels, torch.tensor(location), torch.tensor(math.log(scale)), torch.tensor(half))
    torch.testing.assert_close(logs.double(), (cdf[0] - cdf[1]).log(), rtol=1e-4, atol=1e-4)


def prepared(count: int) -> tuple[Any, tuple[Tensor, Tensor]]:
    found = data.load(DataConfig(shift=0))
    batch = Prepare(found.spec, DataConfig())(found.val.__getitems__(list(range(count))), False, torch.Generator())
    torch.manual_seed(0)
    net = build(ModelConfig(), found.spec)
    torch.nn.init.normal_(net.head.weight, std=0.05)
    return net, batch


def test_elbo_is_below_the_likelihood() -> None:
    """Estimated by importance sampling: Burda et al. 2015, arXiv:1509.00519, theorem 1."""
    net, (images, labels) = prepared(1)
    many = images.expand(1000, -1, -1, -1)
    with torch.no_grad():
        mean, log_variance = net.encode(images)
        noise = torch.randn(1000, mean.shape[1])
        latents = mean + (log_variance / 2).exp() * noise
        levels = ((many * net.std + net.mean) * 255).round()
        location, log_scale = net._pixels(latents)
        pixels = log_probability(many, levels, location, log_scale, 0.5 / (255 * net.std)).flatten(1).sum(1)
        ratio = 0.5 * (noise**2 - latents**2 + log_variance).sum(1)
        likelihood = (pixels + ratio).logsumexp(0) - math.log(1000)
        _, metrics = net.train()(many, labels.expand(1000))
    total, count = metrics["bits_per_dim"]
    elbo = -total / count * math.log(2) * images[0].numel()
    torch.testing.assert_close(elbo, (pixels + ratio).mean(), rtol=1e-2, atol=0.3)
    assert elbo < likelihood


def test_parts_add_up_and_labels_are_unused() -> None:
    net, (images, labels) = prepared(8)
    _, metrics = net.eval()(images, labels)
    torch.testing.assert_close(metrics["bits_per_dim"][0], metrics["reconstruction"][0] + metrics["kl"][0])
    torch.testing.assert_close(metrics["loss"][0] / math.log(2), metrics["bits_per_dim"][0])
    _, others = net(images, labels.flip(0))
    assert torch.equal(metrics["loss"][0], others["loss"][0])


def test_validation_does_not_depend_on_the_batch_and_training_samples_noise() -> None:
    net, (images, labels) = prepared(6)
    with torch.no_grad():
        together = net.eval()(images, labels)[1]["bits_per_dim"][0]
        parts = sum(net(images[part : part + 1], labels[:1])[1]["bits_per_dim"][0] for part in range(6))
        torch.testing.assert_close(together, parts)
        net.train()
        assert net(images, labels)[0] != net(images, labels)[0]


def test_noise_of_a_large_image_is_selected_by_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of its levels is odd and above 2 ** 24, so fp32 cannot represent it."""
    spec = Spec(3, 160, ("a", "b"), (0.5,) * 3, (0.25,) * 3)
    net = build(ModelConfig(width=8), spec).eval()
    torch.nn.init.zeros_(net.to_latent.weight)  # so that the latents are the noise
    torch.nn.init.zeros_(net.to_latent.bias)
    levels = torch.full((1, 3, 160, 160), 255.0)
    levels[0, 0, 0, 0] = 254
    found, pixels = [], net._pixels

    def note(latents: Tensor) -> tuple[Tensor, Tensor]:
        found.append(latents)
        return pixels(latents)

    monkeypatch.setattr(net, "_pixels", note)
    with torch.no_grad():
        net((levels / 255 - 0.5) / 0.25, torch.zeros(1))
    assert torch.equal(found[0][0], net.draws[(3 * 160 * 160 * 255 - 1) % 64])


def test_likelihood_is_fp32_under_autocast() -> None:
    net, batch = prepared(4)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        loss, metrics = net.eval()(*batch)
    assert loss.dtype == torch.float32
    assert all(total.dtype == torch.float32 for total, _ in metrics.values())
    torch.testing.assert_close(loss, net(*batch)[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("size", ["small", "base"])
def test_sizes_and_shapes(size: Any) -> None:
    spec = Spec(3, 64, ("a", "b"), (0.5,) * 3, (0.25,) * 3)
    cfg = ModelConfig(size=size, width=8)
    net = build(cfg, spec).eval()
    with torch.no_grad():
        assert net.predict(torch.randn(2, 3, 64, 64)).shape == (2, 3, 64, 64)
        first, again = (net.sample(5, torch.Generator().manual_seed(1)) for _ in range(2))
    assert first.shape == (5, 3, 64, 64)
    assert torch.equal(first, again)
    assert 0 <= first.min() <= first.max() <= 1
    assert len(net.blocks) == 2 * cfg.stages


@pytest.mark.parametrize(("values", "key"), [({"width": 12}, "width"), ({"latent": 3}, "latent")])
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)


def test_indivisible_size_is_an_error() -> None:
    with pytest.raises(UserError, match="model.stages is 4: the image size of 8 pixels must be a multiple of 16"):
        build(ModelConfig(stages=4), DIGITS)


def test_recipe_does_not_shift_images() -> None:
    """Shifted images have another distribution than the one that is evaluated."""
    assert parse("test", "", [f"--config={ROOT}/configs/default.yaml"]).data.shift == 0
