"""The MLP: parameter counts, embedding of categories, metrics, and the result on the diabetes data set.

Delete this file together with the example's model.py: nothing else needs it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from .. import data, model
from ..config import Config, parse
from ..data import Spec
from ..distributed import World
from ..errors import UserError
from ..model import MLP, ModelConfig
from ..train import train
from .conftest import ROOT

pytestmark = pytest.mark.fast

MIXED = Spec(
    numeric=("a", "b", "c"),
    mean=(0.0,) * 3,
    std=(1.0,) * 3,
    indicated=("b",),
    categorical=("d", "e"),
    categories=(("x", "y", None), ("0", "1")),
    target="t",
    classes=("no", "yes", "perhaps"),
    target_mean=0.0,
    target_std=1.0,
    center=0.0,
)
NUMBER = replace(MIXED, classes=(), target_mean=50.0, target_std=4.0, center=51.0)


def count_parameters(spec: Spec, width: int, depth: int, embedding: int) -> int:
    """Counted by hand: the embedding, the stem, two matrices and a norm per block, the head and its norm."""
    table = (4 + 3) * embedding
    inputs = -(-(3 + 1 + 2 * embedding) // 8) * 8
    block = 2 * width + (width + 1) * 2 * width + 2 * width * width
    return table + inputs * width + depth * block + 2 * width + (width + 1) * (len(spec.classes) or 1)


@pytest.mark.parametrize(
    ("spec", "size", "shape"),
    [(MIXED, "small", (64, 2, 8)), (NUMBER, "small", (64, 2, 8)), (MIXED, "wide", (512, 4, 32))],
)
def test_sizes_have_the_expected_parameter_counts(
    spec: Spec, size: Literal["small", "wide"], shape: tuple[int, int, int]
) -> None:
    with torch.device("meta"):
        net = model.build(ModelConfig(size=size), spec)
    assert sum(weight.numel() for weight in net.parameters()) == count_parameters(spec, *shape)
    assert len(net.blocks) == shape[1]


def test_field_overrides_the_size() -> None:
    cfg = ModelConfig(size="wide", width=128)
    assert (cfg.width, cfg.depth) == (128, 4)


@pytest.mark.parametrize("key", ["width", "embedding"])
def test_sizes_are_multiples_of_8(key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key} is 12: it must be a multiple of 8"):
        parse("test", "", [f"--model.{key}=12"])


def test_label_smoothing_needs_labels() -> None:
    with pytest.raises(UserError, match="model.label_smoothing is 0.1: the target t is numeric"):
        model.build(ModelConfig(label_smoothing=0.1), NUMBER)


def random_model(spec: Spec) -> MLP:
    """A model whose outputs differ from row to row."""
    torch.manual_seed(0)
    net = model.build(ModelConfig(), spec)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return net.eval()


def test_each_column_has_its_own_categories() -> None:
    net = random_model(MIXED)
    numbers = torch.randn(1, 4).expand(12, 4)
    codes = torch.cartesian_prod(torch.arange(4), torch.arange(3))
    assert len({tuple(row) for row in net.predict(numbers, codes).tolist()}) == 12
    assert net.categories is not None
    net.categories.weight.grad = None
    net.predict(numbers[:1], torch.tensor([[3, 2]])).sum().backward()
    assert net.categories.weight.grad is not None
    assert net.categories.weight.grad.abs().sum(1).nonzero().flatten().tolist() == [3, 4 + 2]


def test_unknown_categories_are_initialized_to_zero() -> None:
    table = model.build(ModelConfig(), MIXED).categories
    assert table is not None
    assert (table.weight.abs().sum(1) == 0).nonzero().flatten().tolist() == [0, 4]


def test_regression_metrics_equal_those_of_scikit_learn() -> None:
    net = random_model(NUMBER)
    targets = 50 + 4 * torch.randn(64)
    net.center = (targets.mean().item() - 50) / 4
    numbers, codes = torch.randn(64, 4), torch.randint(0, 3, (64, 2))
    totals: dict[str, list[float]] = {}
    with torch.no_grad():
        found = net.predict(numbers, codes)
        for part in range(0, 64, 16):  # sums over batches
            rows = slice(part, part + 16)
            _, metrics = net(numbers[rows], codes[rows], (targets[rows] - 50) / 4)
            for name, (total, count) in metrics.items():
                sums = totals.setdefault(name, [0.0, 0.0])
                sums[0], sums[1] = sums[0] + float(total), sums[1] + float(count)
    reached = {name: total / count for name, (total, count) in totals.items()}
    assert reached["r2"] == pytest.approx(r2_score(targets, found), rel=1e-4)
    assert reached["mae"] == pytest.approx(mean_absolute_error(targets, found), rel=1e-4)
    assert reached["loss"] == pytest.approx(mean_squared_error(targets, found) / 16, rel=1e-4)


def test_regression_predicts_in_fp32_under_autocast() -> None:
    net = random_model(NUMBER)
    inputs = torch.randn(8, 4), torch.zeros(8, 2, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16):
        found = net.predict(*inputs)
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())


def test_recipe_learns_the_diabetes_data_set(world: World, tmp_path: Path) -> None:
    options = ["--data.builtin=diabetes", "--run.device=cpu", f"--run.dir={tmp_path}"]
    cfg = parse("test", "", [f"--config={ROOT}/configs/default.yaml", *options, "--speed.compile=off"])
    cfg = replace(cfg, data=data.DataConfig(builtin="diabetes"), speed=replace(cfg.speed, precision="fp32"))
    assert train(cfg, world)["r2"] >= 0.4


def test_model_overfits_a_table_of_categories(config: Callable[..., Config]) -> None:
    torch.manual_seed(0)
    net = model.build(config().model, MIXED)
    codes = torch.cartesian_prod(torch.arange(4), torch.arange(3))
    labels = (codes[:, 0] * 2 + codes[:, 1]) % 3  # depends only on the categories
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(60):
        loss, metrics = net(torch.zeros(12, 4), codes, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert metrics["accuracy"][0] == 12
