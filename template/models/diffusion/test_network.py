"""The diffusion model: path, loss, sampler, architecture and config errors.

Delete this file together with the example's model.py: nothing else needs it.
"""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from .. import data
from ..config import parse
from ..data import DataConfig, Prepare, Spec
from ..errors import UserError
from ..model import ModelConfig, build
from .conftest import ROOT

pytestmark = pytest.mark.fast

MARGIN = 0.05
"""Minimum by which the recipe's loss must be below that of the best linear velocity."""
DIGITS = Spec(1, 8, tuple("0123456789"), (0.3,), (0.38,))


def prepared(count: int, **options: Any) -> tuple[Any, tuple[Tensor, Tensor]]:
    found = data.load(DataConfig(shift=0))
    batch = Prepare(found.spec, DataConfig())(found.val.__getitems__(list(range(count))), False, torch.Generator())
    torch.manual_seed(0)
    net: Any = build(ModelConfig(**options), found.spec)
    for layer in (net.head, *(block.conv2 for block in net.blocks)):
        torch.nn.init.normal_(layer.weight, std=0.05)
    return net, batch


def linear_velocity(points: Tensor, times: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """E[image - noise | point] where each dimension of the images is Gaussian, and the noise is standard normal."""
    slope = (times * variance - (1 - times)) / (times**2 * variance + (1 - times) ** 2)
    return mean + slope * (points - times * mean)


def test_expected_result_beats_the_best_linear_velocity() -> None:
    """At the points of validation, with the minimum variance tuned on these, in favor of the baseline."""
    net, (images, _) = prepared(359)
    noise, times = (part.double() for part in net.fixed_draws(images))
    val, times = images.flatten(1).double(), times.unsqueeze(1)
    train = data.load(DataConfig()).train.__getitems__(list(range(1438)))[0].flatten(1) / 255
    train = (train.double() - net.mean.item()) / net.std.item()
    mean = train.mean(0)
    variances, basis = torch.linalg.eigh((train - mean).T.cov(correction=0))
    val, noise = (val - mean) @ basis, noise.flatten(1) @ basis  # the dimensions are independent in this basis
    points = times * val + (1 - times) * noise
    losses = [
        (linear_velocity(points, times, torch.zeros(64), variances.clamp(least)) - (val - noise)).square().mean()
        for least in (1e-5, 1e-4, 1e-3, 1e-2)
    ]
    recipe = (ROOT / "configs" / "default.yaml").read_text()
    expected = re.search(r"^# Expect: loss < ([\d.]+)", recipe, re.MULTILINE)
    assert expected is not None, "configs/default.yaml has no line '# Expect: loss < X'"
    assert float(expected[1]) <= min(losses) - MARGIN


def test_sampler_follows_the_velocity_to_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exact velocity of pixels that are independent and Gaussian, new images have their distribution."""
    net = build(ModelConfig(), Spec(1, 8, ("a",), (0.5,), (0.1,)))
    mean, std = 0.6, 0.8  # of prepared images

    def exact(points: Tensor, times: Tensor) -> Tensor:
        return linear_velocity(points, times.view(-1, 1, 1, 1), torch.tensor(mean), torch.tensor(std**2))

    monkeypatch.setattr(net, "predict", exact)
    new = net.sample(1000, torch.Generator().manual_seed(0))
    assert new.mean().item() == pytest.approx(0.5 + 0.1 * mean, abs=0.002)
    assert new.std().item() == pytest.approx(0.1 * std, abs=0.002)
    images = mean + std * torch.randn(2000, 1, 8, 8)
    for time in (0.2, 0.7):  # the noise that is left in the velocity: Var[image - noise | point]
        left = std**2 / (time**2 * std**2 + (1 - time) ** 2)
        errors = net.errors(images, torch.randn_like(images), torch.full((2000,), time))
        assert errors.mean().item() == pytest.approx(left, rel=0.02)


def test_untrained_network_answers_zero() -> None:
    net, (images, labels) = prepared(64)
    torch.nn.init.zeros_(net.head.weight)
    noise, _ = net.fixed_draws(images)
    loss, metrics = net.eval()(images, labels)
    torch.testing.assert_close(loss, (images - noise).square().mean())
    torch.testing.assert_close(metrics["loss"][0], loss * 64)


def test_validation_does_not_depend_on_the_batch_and_training_draws_noise_and_times() -> None:
    net, (images, labels) = prepared(6)
    with torch.no_grad():
        together = net.eval()(images, labels)[1]["loss"][0]
        parts = sum(net(images[part : part + 1], labels[:1])[1]["loss"][0] for part in range(6))
        torch.testing.assert_close(together, parts)
        assert torch.equal(together, net(images, labels.flip(0))[1]["loss"][0]), "labels are unused"
        net.train()
        first = net(images, labels)[0]
        assert net(images, labels)[0] != first


def test_validation_keeps_float64() -> None:
    """For `debug.gradcheck`."""
    net, (images, labels) = prepared(2)
    assert net.double().eval()(images.double(), labels)[0].dtype == torch.float64


def test_fixed_noise_and_times_differ_between_images() -> None:
    found = data.load(DataConfig(shift=0))
    batch = Prepare(found.spec, DataConfig())(found.val.__getitems__(list(range(359))), False, torch.Generator())
    noise, times = build(ModelConfig(), found.spec).fixed_draws(batch[0])
    assert len(times.unique()) == len(noise.flatten(1).unique(dim=0)) > 55
    assert 0 < times.min() < 0.05 < 0.95 < times.max() < 1
    assert times.mean().item() == pytest.approx(0.5, abs=0.05)
    assert noise.std().item() == pytest.approx(1, abs=0.15)


def test_draws_of_a_large_image_are_selected_by_each_level() -> None:
    """The sum of its levels is odd and above 2 ** 24, so fp32 cannot represent it."""
    net = build(ModelConfig(width=8), Spec(3, 160, ("a", "b"), (0.5,) * 3, (0.25,) * 3))
    levels = torch.full((1, 3, 160, 160), 255.0)
    levels[0, 0, 0, 0] = 254
    _, times = net.fixed_draws((levels / 255 - 0.5) / 0.25)
    assert times.item() == pytest.approx(((3 * 160 * 160 * 255 - 1) % 61 + 0.5) / 61)


def test_loss_is_fp32_under_autocast() -> None:
    net, batch = prepared(4)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        loss, metrics = net.eval()(*batch)
        assert net.predict(batch[0], torch.rand(4)).dtype == torch.float32
    assert loss.dtype == metrics["loss"][0].dtype == torch.float32
    torch.testing.assert_close(loss, net(*batch)[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("size", "pixels", "millions"), [("36M", 32, 35.7), ("114M", 256, 114)])
def test_parameters_are_those_of_the_paper(size: Any, pixels: int, millions: float) -> None:
    """Appendix B of Ho et al. 2020: 35.7 million for CIFAR-10, and 114 million for images of 256 pixels."""
    with torch.device("meta"):
        net = build(ModelConfig(size=size), Spec(3, pixels, ("a",), (0.5,) * 3, (0.25,) * 3))
    count = sum(parameter.numel() for parameter in net.parameters()) / 1e6
    assert round(count, 1 if millions < 100 else None) == millions


def test_attention_is_at_its_resolution_and_at_the_lowest() -> None:
    spec = Spec(3, 32, ("a",), (0.5,) * 3, (0.25,) * 3)
    net = build(ModelConfig(width=8, multipliers=(1, 2, 2), depth=2, attention=16), spec).eval()
    seen = []
    for block in net.blocks:
        kind = type(block.attention).__name__
        block.register_forward_hook(lambda _, args, out, kind=kind: seen.append((out.shape[-1], kind)))
    with torch.no_grad():
        assert net.predict(torch.randn(2, 3, 32, 32), torch.rand(2)).shape == (2, 3, 32, 32)
    down = [(32, "Identity"), (32, "Identity"), (16, "Attention"), (16, "Attention"), (8, "Identity"), (8, "Identity")]
    up = [(8, "Identity")] * 3 + [(16, "Attention")] * 3 + [(32, "Identity")] * 3
    assert seen == [*down, (8, "Attention"), (8, "Identity"), *up]


def test_new_images_depend_on_the_seed_and_the_time_on_the_velocity() -> None:
    net, (images, _) = prepared(3)
    net.eval()
    with torch.no_grad():
        first, again, other = (net.sample(3, torch.Generator().manual_seed(seed), steps=2) for seed in (1, 1, 2))
        assert first.shape == (3, 1, 8, 8)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert 0 <= first.min() <= first.max() <= 1
        early, late = (net.predict(images, torch.full((3,), time)) for time in (0.1, 0.9))
        assert not torch.allclose(early, late)


@pytest.mark.parametrize(
    ("values", "key"), [({"width": 12}, "width"), ({"multipliers": (1, 0)}, "multipliers"), ({"width": -8}, "width")]
)
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)


def test_indivisible_size_is_an_error() -> None:
    with pytest.raises(UserError, match=r"multipliers is .*: the image size of 8 pixels must be a multiple of 16"):
        build(ModelConfig(multipliers=(1, 1, 1, 1, 1)), DIGITS)


def test_recipe_does_not_shift_images_and_averages_the_weights() -> None:
    """Shifted images have another distribution than the one that is evaluated, and new images would be shifted."""
    recipe = parse("test", "", [f"--config={ROOT}/configs/default.yaml"])
    assert recipe.data.shift == 0
    assert recipe.train.ema
