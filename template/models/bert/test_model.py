"""BERT: parameter counts, padding, positions, and sizes that do not fit."""

from typing import Any, Literal

import pytest
import torch

from ..data import Spec
from ..errors import UserError
from ..model import BERT, ModelConfig, build


def spec_of(vocabulary: int = 300, length: int = 16) -> Spec:
    return Spec(vocabulary, length, ("a", "b", "c"), "")


def network(**values: Any) -> BERT:
    torch.manual_seed(0)
    net = build(ModelConfig(**values), spec_of()).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return net


@pytest.mark.parametrize(
    ("size", "published"), [("mini", 11_170_560), ("base", 109_482_240), ("large", 335_141_888)]
)
def test_sizes_have_the_published_parameter_counts(
    size: Literal["mini", "base", "large"], published: int
) -> None:
    """Those of BERT without a classifier, with its 30,522 tokens and 512 positions."""
    with torch.device("meta"):
        net = build(ModelConfig(size=size), spec_of(30522, 512))
    assert sum(parameter.numel() for parameter in net.bert.parameters()) == published
    tokens = torch.zeros(2, 9, dtype=torch.int64, device="meta")
    assert net.predict(tokens, tokens == 0).shape == (2, 3)


def test_padding_changes_nothing() -> None:
    net, generator = network(), torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 300, (4, 16), generator=generator)
    mask = torch.arange(16) < torch.tensor([[5], [9], [1], [16]])
    with torch.no_grad():
        padded = net.predict(tokens, mask)
        torch.testing.assert_close(padded, net.predict(torch.where(mask, tokens, 7), mask))
        for row, length in enumerate(mask.sum(1).tolist()):
            alone = net.predict(tokens[row : row + 1, :length], mask[row : row + 1, :length])
            torch.testing.assert_close(padded[row : row + 1], alone, rtol=1e-4, atol=1e-5)


def test_predictions_depend_on_every_token_and_on_their_order() -> None:
    net, tokens = network(), torch.arange(16)[None]
    with torch.no_grad():
        expected = net.predict(tokens, tokens >= 0)
        for place in range(16):
            changed = tokens.clone()
            changed[0, place] = 100
            assert not torch.allclose(net.predict(changed, tokens >= 0), expected)
        swapped = tokens[:, [0, 2, 1, *range(3, 16)]]
        assert not torch.allclose(net.predict(swapped, tokens >= 0), expected)


def test_blocks_have_one_name_each_in_checkpoints() -> None:
    net = network()
    assert "bert.encoder.layer.1.attention.output.LayerNorm.weight" in net.state_dict()
    assert not any(name.startswith("blocks") for name in net.state_dict())
    assert len(list(net.blocks.children())) == 2


@pytest.mark.parametrize(("positions", "rows"), [(0, 16), (8, 16), (32, 32)])
def test_there_is_a_position_for_each_token(positions: int, rows: int) -> None:
    assert network(positions=positions).state_dict()[
        "bert.embeddings.position_embeddings.weight"
    ].shape == (rows, 64)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.heads is 2: it must divide model\.width=12"):
        ModelConfig(width=12)
    with pytest.raises(UserError, match=r"model\.heads is 3"):
        ModelConfig(heads=3)
