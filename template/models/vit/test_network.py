"""The vision transformer: parameter counts, position embedding and config errors.

Delete this file together with the example's model.py: nothing else needs it.
"""

from typing import Any, Literal

import pytest
import torch

from .. import optim
from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build

pytestmark = pytest.mark.fast

IMAGENET = Spec(3, 224, tuple(map(str, range(1000))), (0.5,) * 3, (0.25,) * 3)
DIGITS = Spec(1, 8, tuple("0123456789"), (0.3,), (0.38,))


@pytest.mark.parametrize(("size", "known"), [("Ti/16", 5_717_416), ("S/16", 22_050_664), ("B/16", 86_567_656)])
def test_sizes_have_the_known_parameter_counts(size: Literal["Ti/16", "S/16", "B/16"], known: int) -> None:
    """For 1,000 classes: B/16 as documented by torchvision, S/16 as in timm; Ti/16 computed here."""
    with torch.device("meta"):
        net = build(ModelConfig(size=size), IMAGENET)
    assert sum(parameter.numel() for parameter in net.parameters()) == known
    assert net.predict(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_field_overrides_the_size() -> None:
    cfg = ModelConfig(size="S/16", patch=32, depth=2)
    assert (cfg.patch, cfg.depth, cfg.width, cfg.heads) == (32, 2, 384, 6)


def test_predictions_depend_on_the_positions_of_patches() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), DIGITS).eval()
    torch.nn.init.normal_(net.head.weight)
    images = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        original, rolled = net.predict(images), net.predict(images.roll(4, dims=3))
        assert not torch.allclose(original, rolled, atol=1e-3)
        net.positions.zero_()
        torch.testing.assert_close(net.predict(images), net.predict(images.roll(4, dims=3)))


def test_class_token_and_positions_have_no_weight_decay() -> None:
    net = build(ModelConfig(), DIGITS)
    decayed, rest = optim.groups(net, 0.1)
    assert {id(net.summary), id(net.positions)} <= set(map(id, rest["params"]))
    assert id(net.cut.weight) in map(id, decayed["params"])


def test_untrained_loss_is_that_of_a_uniform_prediction() -> None:
    net = build(ModelConfig(), DIGITS)
    loss, _ = net(torch.randn(4, 1, 8, 8), torch.arange(4))
    assert loss.item() == pytest.approx(2.302585)


@pytest.mark.parametrize(
    ("values", "key"), [({"width": 12}, "width"), ({"heads": 3}, "heads"), ({"width": 64, "heads": 16}, "heads")]
)
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)


def test_patch_size_that_does_not_divide_is_an_error() -> None:
    with pytest.raises(UserError, match="model.patch is 16: it must divide the image size of 8 pixels"):
        build(ModelConfig(patch=16), DIGITS)
