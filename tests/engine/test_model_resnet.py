"""The residual network: loss and metrics against torch, and shapes of its sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

WIDTHS = {"small": [32, 16, 8], 18: [8, 4, 2, 1], 50: [8, 4, 2, 1]}


def build(p: Any, **values: Any) -> Any:
    torch.manual_seed(0)
    return p.model.build(
        p.model.ModelConfig(**values), p.data.Spec(3, 32, ("a", "b", "c"), (0.5,) * 3, (0.25,) * 3)
    )


def test_loss_and_accuracy_equal_those_of_torch(package: Callable[[str], Any]) -> None:
    net = build(package("resnet")).eval()
    images, labels = torch.randn(7, 3, 32, 32), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    with torch.no_grad():
        logits, (loss, metrics) = net.predict(images), net(images, labels)
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels))
    torch.testing.assert_close(metrics["loss"][0] / metrics["loss"][1], loss)
    assert metrics["accuracy"] == ((logits.argmax(1) == labels).sum(), 7)


@pytest.mark.parametrize("size", ["small", 18, 50])
def test_each_stage_halves_the_resolution(package: Callable[[str], Any], size: Any) -> None:
    net = build(package("resnet"), size=size, width=8).eval()
    seen: list[int] = []
    for block in net.blocks:
        block.register_forward_hook(lambda _, args, out: seen.append(out.shape[-1]))
    with torch.no_grad():
        assert net.predict(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert list(dict.fromkeys(seen)) == WIDTHS[size]


def test_weights_of_an_older_version_fit(package: Callable[[str], Any]) -> None:
    """The names in a state_dict of 0.3.0."""
    names = set(build(package("resnet")).state_dict())
    assert {"stem.0.weight", "stem.1.running_mean", "blocks.1.layers.0.0.weight"} <= names
    assert {"blocks.2.shortcut.1.bias", "head.bias"} <= names
