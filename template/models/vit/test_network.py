"""The vision transformer: its named sizes are those that are known, and a class token reads what patches say."""

from typing import Any, Literal

import pytest
import torch

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build

IMAGENET = Spec(3, 224, tuple(map(str, range(1000))), (0.5,) * 3, (0.25,) * 3)
DIGITS = Spec(1, 8, tuple("0123456789"), (0.3,), (0.38,))


@pytest.mark.parametrize(("size", "known"), [("Ti/16", 5_717_416), ("S/16", 22_050_664), ("B/16", 86_567_656)])
def test_named_sizes_have_the_known_counts(size: Literal["Ti/16", "S/16", "B/16"], known: int) -> None:
    """For 1,000 classes: B/16's as torchvision documents it, S/16's as timm has it, Ti/16's from no listing."""
    with torch.device("meta"):
        net = build(ModelConfig(size=size), IMAGENET)
    assert sum(parameter.numel() for parameter in net.parameters()) == known
    assert net.predict(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_a_value_goes_before_the_size() -> None:
    cfg = ModelConfig(size="S/16", patch=32, depth=2)
    assert (cfg.patch, cfg.depth, cfg.width, cfg.heads) == (32, 2, 384, 6)


def test_patches_know_their_places() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), DIGITS).eval()
    torch.nn.init.normal_(net.head.weight)
    images = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        ours, turned = net.predict(images), net.predict(images.roll(4, dims=3))
        assert not torch.allclose(ours, turned, atol=1e-3)
        net.positions.zero_()
        torch.testing.assert_close(net.predict(images), net.predict(images.roll(4, dims=3)))


def test_the_untrained_loss_is_that_of_a_guess() -> None:
    net = build(ModelConfig(), DIGITS)
    loss, _ = net(torch.randn(4, 1, 8, 8), torch.arange(4))
    assert loss.item() == pytest.approx(2.302585)


@pytest.mark.parametrize(
    ("values", "key"), [({"width": 12}, "width"), ({"heads": 3}, "heads"), ({"width": 64, "heads": 16}, "heads")]
)
def test_sizes_that_cannot_be(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)


def test_images_that_cannot_be_cut_into_patches() -> None:
    with pytest.raises(UserError, match="model.patch is 16: it must divide the images' side of 8 pixels"):
        build(ModelConfig(patch=16), DIGITS)
