"""The residual network: parameter counts, initialization and config errors.

Delete this file together with the example's model.py: nothing else needs it.
"""

from typing import Literal

import pytest
import torch

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build

pytestmark = pytest.mark.fast

IMAGENET = Spec(3, 224, tuple(map(str, range(1000))), (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize(("size", "published"), [(18, 11_689_512), (50, 25_557_032)])
def test_sizes_have_the_published_parameter_counts(size: Literal[18, 50], published: int) -> None:
    """As torchvision documents resnet18 and resnet50, for 1,000 classes."""
    with torch.device("meta"):
        net = build(ModelConfig(size=size), IMAGENET)
    assert sum(parameter.numel() for parameter in net.parameters()) == published
    assert net.predict(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_field_overrides_the_size() -> None:
    cfg = ModelConfig(size=50, width=32, depths=(1, 2))
    assert (cfg.width, cfg.depths, cfg.block, cfg.stem) == (32, (1, 2), "bottleneck", "7x7")


def test_block_is_initialized_as_the_identity() -> None:
    net = build(ModelConfig(), IMAGENET)
    block = net.blocks[0]
    x = torch.rand(2, 32, 8, 8)
    torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize(("values", "key"), [({"width": 12}, "width"), ({"depths": (2, 0)}, "depths")])
def test_invalid_sizes_are_an_error(values: dict[str, object], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)  # type: ignore[arg-type]
