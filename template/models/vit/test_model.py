"""The vision transformer: parameter counts, position embedding and config errors."""

from typing import Any, Literal

import pytest
import torch

from ..config import OptimConfig
from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build
from ..optim import adamw

IMAGENET = Spec(3, 224, tuple(map(str, range(1000))), (0.5,) * 3, (0.25,) * 3)
DIGITS = Spec(1, 8, tuple("0123456789"), (0.3,), (0.38,))


@pytest.mark.parametrize(
    ("size", "known"), [("Ti/16", 5_717_416), ("S/16", 22_050_664), ("B/16", 86_567_656)]
)
def test_sizes_have_the_known_parameter_counts(
    size: Literal["Ti/16", "S/16", "B/16"], known: int
) -> None:
    """For 1,000 classes: B/16 as documented by torchvision, S/16 as in timm; Ti/16 computed here."""
    with torch.device("meta"):
        model = build(ModelConfig(size=size), IMAGENET)
    assert sum(parameter.numel() for parameter in model.parameters()) == known
    assert model.predict(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


@torch.no_grad()
def test_predictions_depend_on_the_positions_of_patches() -> None:
    torch.manual_seed(0)
    model = build(ModelConfig(), DIGITS).eval()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(2, 1, 8, 8)
    original, rolled = model.predict(images), model.predict(images.roll(4, dims=3))
    assert not torch.allclose(original, rolled, atol=1e-3)
    model.positions.zero_()
    torch.testing.assert_close(
        model.predict(images), model.predict(images.roll(4, dims=3)), rtol=0, atol=1e-4
    )


def test_class_token_and_positions_have_no_weight_decay() -> None:
    model = build(ModelConfig(), DIGITS)
    decayed, rest = adamw(model, OptimConfig(weight_decay=0.1)).param_groups
    assert {id(model.summary), id(model.positions)} <= set(map(id, rest["params"]))
    assert id(model.cut.weight) in map(id, decayed["params"])


@pytest.mark.parametrize(
    ("values", "key"),
    [({"width": 12}, "width"), ({"heads": 3}, "heads"), ({"width": 64, "heads": 16}, "heads")],
)
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)


def test_patch_size_that_does_not_divide_is_an_error() -> None:
    with pytest.raises(
        UserError, match="model.patch is 16: it must divide the image size of 8 pixels"
    ):
        build(ModelConfig(patch=16), DIGITS)
