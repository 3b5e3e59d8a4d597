"""The MLP: embedding of categories, and regression."""

from dataclasses import replace

import pytest
import torch

from ..data import Spec
from ..errors import UserError
from ..model import MLP, ModelConfig, build

MIXED = Spec(
    numeric={"a": (0.0, 1.0), "b": (0.0, 1.0), "c": (0.0, 1.0)},
    categories={"d": ("x", "y", ""), "e": ("0", "1")},
    classes=("no", "yes", "perhaps"),
    target_mean=0.0,
    target_std=1.0,
    center=0.0,
)
NUMBER = replace(MIXED, classes=(), target_mean=50.0, target_std=4.0, center=0.25)


def random_model(spec: Spec) -> MLP:
    """A model whose outputs differ from row to row."""
    torch.manual_seed(0)
    net = build(ModelConfig(), spec)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return net.eval()


def test_each_column_has_its_own_categories() -> None:
    net = random_model(MIXED)
    codes = torch.cartesian_prod(torch.arange(4), torch.arange(3))
    found = net.predict(torch.randn(1, 3).expand(12, 3), codes)
    assert len({tuple(row) for row in found.tolist()}) == 12


def test_unknown_categories_are_initialized_to_zero() -> None:
    table = build(ModelConfig(), MIXED).categories
    assert table is not None
    assert (table.weight.abs().sum(1) == 0).nonzero().flatten().tolist() == [0, 4]


def test_r2_is_0_for_the_mean_and_1_for_the_target() -> None:
    net = random_model(NUMBER)
    targets = torch.randn(64, generator=torch.Generator().manual_seed(0))
    net.center = targets.mean().item()
    inputs = torch.zeros(64, 3), torch.zeros(64, 2, dtype=torch.int64)
    for bias, exact in [(targets.mean(), False), (targets, True)]:
        net.logits = lambda *_, bias=bias: bias.expand(64).unsqueeze(1)  # type: ignore[method-assign]
        total, count = net(*inputs, targets)[1]["r2"]
        assert float(total) / float(count) == pytest.approx(float(exact), abs=1e-5)


def test_predictions_have_the_targets_unit_and_fp32() -> None:
    net = random_model(NUMBER)
    inputs = torch.randn(8, 3), torch.zeros(8, 2, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16):
        found, standardized = net.predict(*inputs), net.logits(*inputs).squeeze(1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, standardized * 4 + 50)
    assert not torch.equal(found, found.bfloat16().float())


def test_label_smoothing_needs_labels() -> None:
    with pytest.raises(UserError, match="model.label_smoothing is 0.1: the target is numeric"):
        build(ModelConfig(label_smoothing=0.1), NUMBER)
