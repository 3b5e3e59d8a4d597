"""The residual network: loss and metrics against torch, and shapes of its sizes."""

from typing import Any

import pytest
import torch
from engine import Package
from torch.nn import functional as F

MODEL = "resnet"

WIDTHS = {
    "small": [32, 16, 8],
    18: [8, 4, 2, 1],
    50: [8, 4, 2, 1],
}


def build(p: Any, **values: Any) -> Any:
    torch.manual_seed(0)
    return p.model.build(
        p.model.ModelConfig(**values),
        p.data.Spec(
            3,
            32,
            ("a", "b", "c"),
            (0.5,) * 3,
            (0.25,) * 3,
        ),
    )


def test_loss_and_accuracy_equal_those_of_torch(p: Package) -> None:
    net = build(p).eval()
    images = torch.randn(7, 3, 32, 32)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    with torch.no_grad():
        logits = net.predict(images)
        (loss, metrics) = net(images, labels)
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels))
    torch.testing.assert_close(metrics["loss"][0] / metrics["loss"][1], loss)
    assert metrics["accuracy"] == ((logits.argmax(1) == labels).sum(), 7)


@pytest.mark.parametrize("size", ["small", 18, 50])
def test_each_stage_halves_the_resolution(p: Package, size: Any) -> None:
    net = build(p, size=size, width=8).eval()
    seen: list[int] = []
    for block in net.blocks:
        block.register_forward_hook(lambda _, args, out: seen.append(out.shape[-1]))
    with torch.no_grad():
        assert net.predict(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert list(dict.fromkeys(seen)) == WIDTHS[size]
