"""The diffusion model: the recipe against a baseline, the paper's architecture, noise and times."""

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

MARGIN = 0.05
"""Minimum by which the recipe's loss must be below that of the best linear velocity."""


def linear_velocity(points: Tensor, times: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """E[image - noise | point] where each dimension of the images is Gaussian, and the noise is standard normal."""
    slope = (times * variance - (1 - times)) / (times**2 * variance + (1 - times) ** 2)
    return mean + slope * (points - times * mean)


def validation(p: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the prepared validation images, and their points and times."""
    _, val, spec = p.data.load(p.data.DataConfig())
    prepare = p.data.Prepare(spec, p.data.DataConfig())
    images, labels = prepare(val.__getitems__(list(range(len(val)))), False, torch.Generator())
    net = p.model.build(p.model.ModelConfig(), spec).eval()
    predict = Mock(wraps=net.predict)
    monkeypatch.setattr(net, "predict", predict)
    with torch.no_grad():
        net(images, labels)
    points, times = predict.call_args.args
    return images, points, times


def test_expected_result_beats_the_best_linear_velocity(
    package: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the points of validation, with the minimum variance tuned on these, in favor of the baseline."""
    p = package("diffusion")
    images, points, times = validation(p, monkeypatch)
    val, points, times = (
        images.flatten(1).double(),
        points.flatten(1).double(),
        times.double().unsqueeze(1),
    )
    train_set, _, spec = p.data.load(p.data.DataConfig())
    train = train_set.__getitems__(list(range(len(train_set))))[0].flatten(1).double() / 255
    train = (train - spec.mean[0]) / spec.std[0]
    variances, basis = torch.linalg.eigh((train - train.mean(0)).T.cov(correction=0))
    # the dimensions are independent in this basis
    noise = ((points - times * val) / (1 - times)) @ basis
    val = (val - train.mean(0)) @ basis
    points = times * val + (1 - times) * noise
    losses = [
        (linear_velocity(points, times, torch.zeros(64), variances.clamp(least)) - (val - noise))
        .square()
        .mean()
        for least in (1e-5, 1e-4, 1e-3, 1e-2)
    ]
    recipe = (p.root / "configs" / "default.yaml").read_text()
    expected = re.search(r"^# Expect: loss < ([\d.]+)", recipe, re.MULTILINE)
    assert expected is not None
    assert float(expected[1]) <= min(losses) - MARGIN
    assert min(losses) == pytest.approx(0.79, abs=0.03)  # the figure in the recipe


def test_draws_of_a_large_image_are_selected_by_each_level(
    package: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of its levels is odd and above 2 ** 24, so fp32 cannot represent it."""
    p = package("diffusion")
    net = p.model.build(
        p.model.ModelConfig(), p.data.Spec(3, 160, ("a",), (0.5,) * 3, (0.25,) * 3)
    ).eval()
    predict = Mock(side_effect=lambda points, times: points)
    monkeypatch.setattr(net, "predict", predict)
    levels = torch.full((1, 3, 160, 160), 255.0)
    levels[0, 0, 0, 0] = 254
    net((levels / 255 - 0.5) / 0.25, torch.zeros(1))
    draw = (3 * 160 * 160 * 255 - 1) % 61
    assert predict.call_args.args[1].item() == pytest.approx((draw + 0.5) / 61)


def test_noise_is_normal_and_times_are_uniform(
    package: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, points, times = validation(package("diffusion"), monkeypatch)
    noise = (points - times.view(-1, 1, 1, 1) * images) / (1 - times.view(-1, 1, 1, 1))
    assert 0 <= times.min() < 0.05 < 0.95 < times.max() < 1
    assert times.mean().item() == pytest.approx(0.5, abs=0.02)
    assert times.std().item() == pytest.approx(12**-0.5, abs=0.01)
    assert noise.std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("size", "pixels", "millions"), [("36M", 32, 35.7), ("114M", 256, 114)])
def test_parameters_are_those_of_the_paper(
    package: Callable[[str], Any], size: str, pixels: int, millions: float
) -> None:
    """Appendix B of Ho et al.

    2020: 35.7 million for CIFAR-10, and 114 million for images of 256 pixels.
    """
    p = package("diffusion")
    with torch.device("meta"):
        net = p.model.build(
            p.model.ModelConfig(size=size), p.data.Spec(3, pixels, ("a",), (0.5,) * 3, (0.25,) * 3)
        )
    count = sum(parameter.numel() for parameter in net.parameters()) / 1e6
    assert round(count, 1 if millions < 100 else None) == millions


def test_attention_is_at_16_pixels_and_at_the_lowest_resolution(
    package: Callable[[str], Any],
) -> None:
    p = package("diffusion")
    cfg = p.model.ModelConfig(widths=(8, 16, 16), depth=2)
    net = p.model.build(cfg, p.data.Spec(3, 32, ("a",), (0.5,) * 3, (0.25,) * 3)).eval()
    seen = []
    for block in net.blocks:
        kind = "Attention" if block.attention else "Identity"
        block.register_forward_hook(
            lambda _, args, out, kind=kind: seen.append((out.shape[-1], kind))
        )
    with torch.no_grad():
        assert net.predict(torch.randn(2, 3, 32, 32), torch.rand(2)).shape == (2, 3, 32, 32)
    down = [
        (32, "Identity"),
        (32, "Identity"),
        (16, "Attention"),
        (16, "Attention"),
        (8, "Identity"),
        (8, "Identity"),
    ]
    up = [(8, "Identity")] * 3 + [(16, "Attention")] * 3 + [(32, "Identity")] * 3
    assert seen == [*down, (8, "Attention"), (8, "Identity"), *up]


def test_loss_is_fp32_under_autocast(package: Callable[[str], Any]) -> None:
    p = package("diffusion")
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
