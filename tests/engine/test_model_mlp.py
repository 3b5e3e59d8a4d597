"""The MLP: parameter counts, and metrics against scikit-learn."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.metrics import log_loss, mean_absolute_error, mean_squared_error, r2_score


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
                found[0], found[1] = found[0] + float(total), found[1] + float(count)
    return {name: total / count for name, (total, count) in sums.items()}


@pytest.mark.parametrize(
    ("size", "width", "depth", "embedding"), [("small", 64, 2, 8), ("wide", 512, 4, 32)]
)
@pytest.mark.parametrize("classes", [(), ("no", "yes", "perhaps")])
def test_sizes_have_the_expected_parameter_counts(
    package: Callable[[str], Any],
    size: str,
    width: int,
    depth: int,
    embedding: int,
    classes: tuple[str, ...],
) -> None:
    """Counted by hand: the embedding, the stem, two matrices and a norm per block, the head and its norm."""
    p = package("mlp")
    with torch.device("meta"):
        net = p.model.build(p.model.ModelConfig(size=size), spec_of(p, classes))
    inputs = -(-(4 + 2 * embedding) // 8) * 8
    block = 2 * width + (width + 1) * 2 * width + 2 * width * width
    expected = (
        (4 + 3) * embedding
        + inputs * width
        + depth * block
        + 2 * width
        + (width + 1) * (len(classes) or 1)
    )
    assert sum(weight.numel() for weight in net.parameters()) == expected
    assert len(net.blocks) == depth


def test_regression_metrics_equal_those_of_scikit_learn(package: Callable[[str], Any]) -> None:
    net = random_model(package("mlp"), ())
    targets = 50 + 4 * torch.randn(64)
    net.center = (targets.mean().item() - 50) / 4
    numbers, codes = torch.randn(64, 4), torch.randint(0, 3, (64, 2))
    with torch.no_grad():
        found = net.predict(numbers, codes)
    reached = totals(net, numbers, codes, (targets - 50) / 4)
    assert reached["r2"] == pytest.approx(r2_score(targets, found), rel=1e-4)
    assert reached["mae"] == pytest.approx(mean_absolute_error(targets, found), rel=1e-4)
    assert reached["loss"] == pytest.approx(mean_squared_error(targets, found) / 16, rel=1e-4)


def test_classification_loss_equals_that_of_scikit_learn(package: Callable[[str], Any]) -> None:
    net = random_model(package("mlp"), ("no", "yes", "perhaps"))
    numbers, codes, labels = (
        torch.randn(64, 4),
        torch.randint(0, 3, (64, 2)),
        torch.randint(0, 3, (64,)),
    )
    with torch.no_grad():
        probabilities = net.predict(numbers, codes).double().softmax(1)
    reached = totals(net, numbers, codes, labels)
    assert reached["loss"] == pytest.approx(
        log_loss(labels, probabilities, labels=[0, 1, 2]), rel=1e-5
    )
    assert reached["accuracy"] == (probabilities.argmax(1) == labels).double().mean().item()


def test_model_learns_from_categories_alone(package: Callable[[str], Any]) -> None:
    p = package("mlp")
    torch.manual_seed(0)
    net = p.model.build(p.model.ModelConfig(), spec_of(p, ("no", "yes", "perhaps")))
    codes = torch.cartesian_prod(torch.arange(4), torch.arange(3))
    labels = (codes[:, 0] * 2 + codes[:, 1]) % 3
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(60):
        loss, metrics = net(torch.zeros(12, 4), codes, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert metrics["accuracy"][0] == 12
