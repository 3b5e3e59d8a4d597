"""BERT: padding, and the order of the tokens."""

import pytest
import torch

from ..data import Spec
from ..model import BERT, ModelConfig, build


@pytest.fixture
def net() -> BERT:
    torch.manual_seed(0)
    spec = Spec(
        vocabulary=300,
        length=16,
        classes=("a", "b", "c"),
        tokenizer="",
    )
    net = build(ModelConfig(), spec).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return net


@torch.no_grad()
def test_padding_changes_nothing(net: BERT) -> None:
    tokens = torch.randint(0, 300, (4, 16))
    lengths = torch.tensor([5, 9, 1, 16])
    mask = torch.arange(16) < lengths[:, None]
    padded = net.predict(tokens, mask)
    for row, length in enumerate(lengths):
        text = tokens[row : row + 1, :length]
        alone = net.predict(
            text,
            torch.ones_like(text).bool(),
        )
        torch.testing.assert_close(
            padded[row],
            alone[0],
            rtol=1e-4,
            atol=1e-5,
        )


@torch.no_grad()
def test_predictions_depend_on_the_order_of_tokens(net: BERT) -> None:
    tokens = torch.arange(16)[None]
    mask = torch.ones_like(tokens).bool()
    swapped = tokens.clone()
    swapped[0, 1] = 2
    swapped[0, 2] = 1
    logits = net.predict(tokens, mask)
    assert not torch.allclose(net.predict(swapped, mask), logits)
