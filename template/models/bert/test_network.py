"""BERT: parameter counts, padding, positions, initialization and config errors.

Delete this file together with the example's model.py: nothing else needs it.
"""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from ..config import TrainConfig
from ..data import Spec
from ..distributed import World
from ..errors import UserError
from ..model import BERT, ModelConfig, build
from ..techniques.init_from import InitFrom

pytestmark = pytest.mark.fast


def spec_of(vocabulary: int = 300, length: int = 16, padding: str = "length") -> Spec:
    return Spec(vocabulary, length, ("a", "b", "c"), "", padding)


def network(**values: Any) -> BERT:
    torch.manual_seed(0)
    net = build(ModelConfig(**values), spec_of()).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return net


@pytest.mark.parametrize(("size", "published"), [("mini", 11_170_560), ("base", 109_482_240), ("large", 335_141_888)])
def test_sizes_have_the_published_parameter_counts(size: Literal["mini", "base", "large"], published: int) -> None:
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
        others = net.predict(torch.where(mask, tokens, 7), mask)
        torch.testing.assert_close(padded, others)
        for row, length in enumerate(mask.sum(1).tolist()):
            alone = net.predict(tokens[row : row + 1, :length], mask[row : row + 1, :length])
            torch.testing.assert_close(padded[row : row + 1], alone)


def test_predictions_depend_on_every_token_and_on_their_order() -> None:
    net = network()
    tokens = torch.arange(16)[None]
    mask = tokens >= 0
    with torch.no_grad():
        expected = net.predict(tokens, mask)
        for place in range(16):
            changed = tokens.clone()
            changed[0, place] = 100
            assert not torch.allclose(net.predict(changed, mask), expected)
        swapped = tokens[:, [0, 2, 1, *range(3, 16)]]
        assert not torch.allclose(net.predict(swapped, mask), expected)


def test_untrained_loss_is_that_of_a_uniform_prediction() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of())
    tokens = torch.randint(0, 300, (64, 16))
    loss, metrics = net(tokens, tokens >= 0, torch.arange(64) % 3)
    assert loss.item() == pytest.approx(1.0986, abs=0.05)
    assert metrics["accuracy"][1] == 64


def test_blocks_are_those_of_the_checkpoint() -> None:
    """Their parameters have one name each, that of transformers."""
    net = build(ModelConfig(), spec_of())
    names = set(net.state_dict())
    assert "bert.encoder.layer.1.attention.output.LayerNorm.weight" in names
    assert not any(name.startswith("blocks") for name in names)
    assert len(net.blocks) == 2


@pytest.mark.parametrize("names", [("weight", "bias"), ("gamma", "beta")])
def test_published_names_are_loaded(world: World, tmp_path: Path, names: tuple[str, str]) -> None:
    """Those of transformers, and of norms in the first files; the file has another head."""
    net = build(ModelConfig(), spec_of())
    old = {f"LayerNorm.{new}": f"LayerNorm.{name}" for new, name in zip(("weight", "bias"), names, strict=True)}
    saved = {"cls.predictions.bias": torch.zeros(300)}
    for name, value in net.bert.state_dict(prefix="bert.").items():
        ending = next((ending for ending in old if name.endswith(ending)), "")
        saved[name.removesuffix(ending) + old.get(ending, "")] = torch.full_like(value, 0.25)
    torch.save(saved, tmp_path / "pytorch_model.bin")
    said = InitFrom(TrainConfig(init_from=str(tmp_path)), world).load(net)
    assert said["weights"].startswith("39 of 41 tensors from ")
    assert said["initialized"] == "not in there: classifier.weight, classifier.bias"
    assert all((parameter == 0.25).all() for parameter in net.bert.parameters())


def test_batches_of_many_shapes_are_not_compiled() -> None:
    assert build(ModelConfig(), spec_of()).no_compile_reason == ""
    assert "data.padding=length" in build(ModelConfig(), spec_of(padding="batch")).no_compile_reason


@pytest.mark.parametrize(
    ("values", "key"), [({"width": 12}, "width"), ({"heads": 3}, "heads"), ({"width": 64, "heads": 16}, "heads")]
)
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)


def test_too_few_positions_are_an_error() -> None:
    with pytest.raises(UserError, match="model.positions is 8: it must be at least data.length=16"):
        build(ModelConfig(positions=8), spec_of())
