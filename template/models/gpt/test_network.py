"""The GPT: parameter counts, causality, initialization and config errors."""

from typing import Any, Literal

import pytest
import torch

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build


def spec_of(vocabulary: int, context: int) -> Spec:
    return Spec(vocabulary=vocabulary, context=context)


@pytest.mark.parametrize(("size", "published"), [("124M", 124_439_808), ("355M", 354_823_168)])
def test_sizes_have_the_published_parameter_counts(size: Literal["124M", "355M"], published: int) -> None:
    """Those of GPT-2 small and medium by OpenAI, plus our 47 rows of padding in the embedding."""
    cfg = ModelConfig(size=size)
    with torch.device("meta"):
        net = build(cfg, spec_of(50257, 1024))
    assert sum(parameter.numel() for parameter in net.parameters()) == published + 47 * cfg.width
    assert net.predict(torch.zeros(1, 16, dtype=torch.int64, device="meta")).shape == (1, 16, 50257)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_predictions_do_not_depend_on_later_tokens(positions: Literal["rotary", "learned"]) -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(positions=positions), spec_of(256, 32)).eval()
    tokens = torch.randint(0, 256, (2, 32))
    changed = tokens.clone()
    changed[:, 20:] = torch.randint(0, 256, (2, 12))
    with torch.no_grad():
        original, other = net.predict(tokens), net.predict(changed)
    torch.testing.assert_close(original[:, :20], other[:, :20])
    assert not torch.allclose(original[:, 20:], other[:, 20:])


def test_untrained_loss_is_that_of_a_uniform_prediction() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(256, 32)).eval()
    tokens = torch.randint(0, 256, (8, 33))
    _, metrics = net(tokens[:, :-1], tokens[:, 1:])
    total, count = metrics["bits_per_byte"]
    assert float(total) / count == pytest.approx(8, abs=0.3)


@pytest.mark.parametrize(
    ("values", "key"), [({"width": 12}, "width"), ({"heads": 3}, "heads"), ({"width": 64, "heads": 16}, "heads")]
)
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)
