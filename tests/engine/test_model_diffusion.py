"""The diffusion model: the paper's architecture, noise and times."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from engine import Package, images_of
from torch import Tensor

MODEL = "diffusion"


def validation(p: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the prepared validation images, and their points and times."""
    _, val, spec = p.data.load(p.data.DataConfig())
    prepare = p.data.Prepare(spec, p.data.DataConfig())
    images, labels = prepare(
        val.__getitems__(list(range(len(val)))),
        False,
        torch.Generator(),
    )
    net = p.model.build(p.model.ModelConfig(), spec).eval()
    predict = Mock(wraps=net.predict)
    monkeypatch.setattr(net, "predict", predict)
    with torch.no_grad():
        net(images, labels)
    points, times = predict.call_args.args
    return images, points, times


def test_draws_of_a_large_image_are_selected_by_each_level(
    p: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of its levels is odd and above 2 ** 24, so fp32 cannot represent it."""
    net = p.model.build(p.model.ModelConfig(), images_of(p, 160)).eval()
    predict = Mock(side_effect=lambda points, times: points)
    monkeypatch.setattr(net, "predict", predict)
    levels = torch.full((1, 3, 160, 160), 255.0)
    levels[0, 0, 0, 0] = 254
    net((levels / 255 - 0.5) / 0.25, torch.zeros(1))
    draw = (3 * 160 * 160 * 255 - 1) % 61
    assert predict.call_args.args[1].item() == pytest.approx((draw + 0.5) / 61)


def test_noise_is_normal_and_times_are_uniform(p: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    images, points, times = validation(p, monkeypatch)
    time = times.view(-1, 1, 1, 1)
    noise = (points - time * images) / (1 - time)
    assert 0 <= times.min() < 0.05 < 0.95 < times.max() < 1
    assert times.mean().item() == pytest.approx(0.5, abs=0.02)
    assert times.std().item() == pytest.approx(12**-0.5, abs=0.01)
    assert noise.std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("size", "pixels", "millions"),
    [
        ("36M", 32, 35.7),
        ("114M", 256, 114),
    ],
)
def test_parameters_are_those_of_the_paper(
    p: Package, size: str, pixels: int, millions: float
) -> None:
    """Appendix B of Ho et al.

    2020: 35.7 million for CIFAR-10, and 114 million for images of 256 pixels.
    """
    with torch.device("meta"):
        net = p.model.build(p.model.ModelConfig(size=size), images_of(p, pixels))
    count = sum(parameter.numel() for parameter in net.parameters()) / 1e6
    assert round(count, 1 if millions < 100 else None) == millions


def test_attention_is_at_16_pixels_and_at_the_lowest_resolution(
    p: Package,
) -> None:
    cfg = p.model.ModelConfig(widths=(8, 16, 16), depth=2)
    net = p.model.build(cfg, images_of(p, 32)).eval()
    seen = []
    for block in net.blocks:
        kind = "Attention" if block.attention else "Identity"
        block.register_forward_hook(
            lambda _, args, out, kind=kind: seen.append((out.shape[-1], kind))
        )
    with torch.no_grad():
        images = torch.randn(2, 3, 32, 32)
        assert net.predict(images, torch.rand(2)).shape == images.shape
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
