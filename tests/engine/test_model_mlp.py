"""The MLP: metrics against scikit-learn."""

from typing import Any

import pytest
import torch
from engine import Package
from sklearn.metrics import log_loss, mean_absolute_error, mean_squared_error, r2_score

MODEL = "mlp"


def spec_of(p: Any, classes: tuple[str, ...]) -> Any:
    return p.data.Spec(
        numeric=("a", "b", "c", "b is missing"),
        mean=(0.0,) * 4,
        std=(1.0,) * 4,
        categorical=("d", "e"),
        categories=(("x", "y", ""), ("0", "1")),
        classes=classes,
        target_mean=0.0 if classes else 50.0,
        target_std=1.0 if classes else 4.0,
        center=0.0,
    )


def random_model(p: Any, classes: tuple[str, ...]) -> Any:
    torch.manual_seed(0)
    net = p.model.build(p.model.ModelConfig(), spec_of(p, classes))
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return net.eval()


def totals(net: Any, *batch: torch.Tensor) -> dict[str, float]:
    """The metrics of 64 rows, in batches of 16."""
    sums: dict[str, list[float]] = {}
    with torch.no_grad():
        for begin in range(0, 64, 16):
            for name, (total, count) in net(*(part[begin : begin + 16] for part in batch))[
                1
            ].items():
                found = sums.setdefault(name, [0.0, 0.0])
                found[0] += float(total)
                found[1] += float(count)
    return {name: total / count for name, (total, count) in sums.items()}


def test_regression_metrics_equal_those_of_scikit_learn(p: Package) -> None:
    net = random_model(p, ())
    targets = 50 + 4 * torch.randn(64)
    net.center = (targets.mean().item() - 50) / 4
    numbers = torch.randn(64, 4)
    codes = torch.randint(0, 3, (64, 2))
    with torch.no_grad():
        found = net.predict(numbers, codes)
    reached = totals(net, numbers, codes, (targets - 50) / 4)
    assert reached["r2"] == pytest.approx(r2_score(targets, found), rel=1e-4)
    assert reached["mae"] == pytest.approx(mean_absolute_error(targets, found), rel=1e-4)
    assert reached["loss"] == pytest.approx(mean_squared_error(targets, found) / 16, rel=1e-4)


def test_classification_loss_equals_that_of_scikit_learn(p: Package) -> None:
    net = random_model(p, ("no", "yes", "perhaps"))
    numbers = torch.randn(64, 4)
    codes = torch.randint(0, 3, (64, 2))
    labels = torch.randint(0, 3, (64,))
    with torch.no_grad():
        probabilities = net.predict(numbers, codes).double().softmax(1)
    reached = totals(net, numbers, codes, labels)
    assert reached["loss"] == pytest.approx(
        log_loss(labels, probabilities, labels=[0, 1, 2]), rel=1e-5
    )
    assert reached["accuracy"] == (probabilities.argmax(1) == labels).double().mean().item()
