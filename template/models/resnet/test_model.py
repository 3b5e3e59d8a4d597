"""The residual network: parameter counts, initialization and config errors."""

from typing import Any, Literal

import pytest
import torch

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build

IMAGENET = Spec(3, 224, tuple(map(str, range(1000))), (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize(("size", "published"), [(18, 11_689_512), (50, 25_557_032)])
def test_sizes_have_the_published_parameter_counts(size: Literal[18, 50], published: int) -> None:
    """As torchvision documents resnet18 and resnet50, for 1,000 classes."""
    with torch.device("meta"):
        model = build(ModelConfig(size=size), IMAGENET)
    assert sum(parameter.numel() for parameter in model.parameters()) == published
    assert model.predict(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_field_overrides_the_size() -> None:
    cfg = ModelConfig(size=50, width=32, depths=(1, 2))
    assert (cfg.width, cfg.depths, cfg.block, cfg.stem) == (32, (1, 2), "bottleneck", "7x7")


def test_block_is_initialized_as_the_identity() -> None:
    x = torch.rand(2, 32, 8, 8)
    torch.testing.assert_close(build(ModelConfig(), IMAGENET).blocks[0](x), x)


def test_labels_are_smoothed_in_training_only() -> None:
    model = build(
        ModelConfig(label_smoothing=0.2, width=8), Spec(1, 8, ("a", "b"), (0.5,), (0.2,))
    ).eval()
    torch.nn.init.constant_(model.head.weight, 1.0)
    batch = (torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))
    plain = torch.nn.functional.cross_entropy(model.predict(batch[0]), batch[1])
    assert model(*batch)[0] == plain
    for module in model.modules():
        module.training = not isinstance(module, torch.nn.BatchNorm2d)
    torch.nn.init.normal_(model.head.bias)
    smooth = torch.nn.functional.cross_entropy(
        model.predict(batch[0]), batch[1], label_smoothing=0.2
    )
    torch.testing.assert_close(model(*batch)[0], smooth)


@pytest.mark.parametrize(
    ("values", "key"), [({"width": 12}, "width"), ({"depths": (2, 0)}, "depths")]
)
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)
