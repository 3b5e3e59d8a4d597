"""The GPT: causality, the untrained loss, and the padding of its vocabulary."""

import math

import pytest
import torch

from ..data import Spec
from ..model import GPT, ModelConfig, build


@pytest.fixture
def net() -> GPT:
    torch.manual_seed(0)
    return build(ModelConfig(), Spec(vocabulary=65, context=32))


def test_predictions_do_not_depend_on_later_tokens(net: GPT) -> None:
    tokens = torch.randint(0, 65, (2, 32))
    changed = tokens.clone()
    changed[:, 20:] = 64 - tokens[:, 20:]
    logits = net.predict(tokens)
    others = net.predict(changed)
    torch.testing.assert_close(
        logits[:, :20],
        others[:, :20],
    )
    assert not torch.allclose(logits[:, 20:], others[:, 20:])


def test_untrained_loss_is_that_of_a_uniform_prediction(net: GPT) -> None:
    tokens = torch.randint(0, 65, (8, 33))
    _, metrics = net(
        tokens[:, :-1],
        tokens[:, 1:],
    )
    total, count = metrics["bits_per_byte"]
    bits = total.item() / count
    assert bits == pytest.approx(math.log2(65), abs=0.3)


def test_padding_of_the_vocabulary_is_not_trained(net: GPT) -> None:
    tokens, targets = torch.randint(0, 65, (2, 4, 32))
    loss, _ = net(tokens, targets)
    loss.backward()
    gradient = net.head.weight.grad
    assert gradient is not None
    assert len(gradient) == 128
    assert not gradient[65:].any()
