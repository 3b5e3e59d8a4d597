"""The MLP: embedding of categories, and regression."""

from dataclasses import replace

import pytest
import torch

from ..data import Spec
from ..model import MLP, ModelConfig, build

LABELS = Spec(
    numeric=("a", "b"),
    mean=(0.0, 0.0),
    std=(1.0, 1.0),
    categorical=("c", "d"),
    categories=(("x", "y", ""), ("0", "1")),
    classes=("no", "yes", "perhaps"),
    target_mean=0.0,
    target_std=1.0,
    center=0.0,
)
NUMBER = replace(
    LABELS,
    classes=(),
    target_mean=50.0,
    target_std=4.0,
)


def random_model(spec: Spec) -> MLP:
    """Return a model whose outputs differ from row to row."""
    torch.manual_seed(0)
    net = build(ModelConfig(), spec)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return net.eval()


def test_each_column_has_its_own_categories() -> None:
    net = random_model(LABELS)
    codes = torch.cartesian_prod(
        torch.arange(4),
        torch.arange(3),
    )
    logits = net.predict(torch.zeros(12, 2), codes)
    assert len(logits.unique(dim=0)) == 12


def test_unknown_categories_start_with_zero() -> None:
    table = build(ModelConfig(), LABELS).categories
    assert table is not None
    is_zero = (table.weight == 0).all(1)
    assert is_zero.nonzero().flatten().tolist() == [0, 4]


def test_r2_is_1_for_the_target_and_0_for_the_mean() -> None:
    net = random_model(NUMBER)
    targets = torch.randn(64)
    net.center = targets.mean().item()
    means = targets.mean().expand(64)
    for predicted, expected in [(targets, 1.0), (means, 0.0)]:
        _, metrics = net.regression(predicted, targets)
        total, count = metrics["r2"]
        assert float(total / count) == pytest.approx(expected, abs=1e-5)


def test_predictions_have_the_targets_unit_and_fp32() -> None:
    net = random_model(NUMBER)
    numbers = torch.randn(8, 2)
    codes = torch.zeros(
        8,
        2,
        dtype=torch.int64,
    )
    with torch.autocast("cpu", torch.bfloat16):
        predicted = net.predict(numbers, codes)
        standardized = net.logits(numbers, codes).squeeze(1)
    assert predicted.dtype == torch.float32
    torch.testing.assert_close(predicted, 50 + 4 * standardized)
