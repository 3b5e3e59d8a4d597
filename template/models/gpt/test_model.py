"""The GPT: parameter counts, causality, initialization, and sizes that do not fit."""

from typing import Literal

import pytest
import torch

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build


@pytest.mark.parametrize(("size", "published"), [("124M", 124_439_808), ("355M", 354_823_168)])
def test_sizes_have_the_published_parameter_counts(
    size: Literal["124M", "355M"], published: int
) -> None:
    """Those of GPT-2 small and medium, and our 47 rows of padding in the embedding."""
    cfg = ModelConfig(size=size)
    with torch.device("meta"):
        net = build(cfg, Spec(vocabulary=50257, context=1024))
    assert sum(parameter.numel() for parameter in net.parameters()) == published + 47 * cfg.width
    assert net.predict(torch.zeros(1, 16, dtype=torch.int64, device="meta")).shape == (1, 16, 50257)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_predictions_do_not_depend_on_later_tokens(positions: Literal["rotary", "learned"]) -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(positions=positions), Spec(vocabulary=256, context=32)).eval()
    tokens = torch.randint(0, 256, (2, 32))
    changed = tokens.clone()
    changed[:, 20:] = torch.randint(0, 256, (2, 12))
    with torch.no_grad():
        original, other = net.predict(tokens), net.predict(changed)
    torch.testing.assert_close(original[:, :20], other[:, :20])
    assert not torch.allclose(original[:, 20:], other[:, 20:])


def test_untrained_loss_is_that_of_a_uniform_prediction() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), Spec(vocabulary=256, context=32)).eval()
    tokens = torch.randint(0, 256, (8, 33))
    total, count = net(tokens[:, :-1], tokens[:, 1:])[1]["bits_per_byte"]
    assert float(total) / count == pytest.approx(8, abs=0.3)


def test_padding_of_the_vocabulary_is_neither_trained_nor_counted() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), Spec(vocabulary=65, context=32))
    tokens, targets = torch.randint(0, 65, (2, 4, 32))
    expected = -net.predict(tokens).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).mean()
    loss, _ = net(tokens, targets)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    gradient = net.head.weight.grad
    assert gradient is not None
    assert gradient.shape[0] == 128
    assert not gradient[65:].any()


def test_invalid_sizes_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"model\.heads is 2: it must divide model\.width=12 into multiples of 8"
    ):
        ModelConfig(width=12)
    with pytest.raises(UserError, match=r"model\.heads is 3"):
        ModelConfig(heads=3)
