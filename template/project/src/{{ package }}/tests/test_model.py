"""The data and the model: inputs, shapes, gradients, and whether it can learn."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..contracts import load_batch
from ..data import DataConfig, Prepare
from ..loss import compute_loss
from ..model import ModelConfig, build
from .support import load_all

Built = tuple[nn.Module, Any]
"""A model, and a prepared batch of 8 samples."""


@pytest.fixture
def built() -> Built:
    train_set, _, spec = load_all(DataConfig())
    torch.manual_seed(0)
    prepare = Prepare(spec, DataConfig())
    batch = load_batch(train_set, list(range(8)))
    return build(ModelConfig(), spec), prepare(batch, False, torch.default_generator)


def train_step(built: Built, optimizer: torch.optim.Optimizer) -> float:
    """Return the loss before the step. Dropout and noise are the same in each step."""
    torch.manual_seed(0)
    optimizer.zero_grad()
    loss, _ = compute_loss(*built)
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("training", [True, False])
def test_loss_is_a_finite_scalar_and_the_mean_of_its_metric(built: Built, training: bool) -> None:
    model, batch = built
    model.train(training)
    loss, metrics = compute_loss(model, batch)
    assert loss.shape == ()
    assert loss.isfinite()
    total, count = metrics["loss"]
    assert count >= 8
    mean = float(total) / float(count)
    assert mean == pytest.approx(loss.item(), rel=1e-4)
    for pair in metrics.values():
        for part in pair:
            assert not (isinstance(part, Tensor) and part.requires_grad)


def test_gradients_reach_every_parameter(built: Built) -> None:
    optimizer = torch.optim.AdamW(built[0].parameters(), lr=1e-2)
    for _ in range(3):  # layers that start with zeros pass gradients on after their first update
        train_step(built, optimizer)
    for name, parameter in built[0].named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


def test_one_batch_is_learned_by_heart(built: Built) -> None:
    optimizer = torch.optim.AdamW(built[0].parameters(), lr=3e-3)
    first = train_step(built, optimizer)
    assert any(train_step(built, optimizer) < first / 2 for _ in range(100))


def samples(dataset: Any) -> set[bytes]:
    """Return the bytes of each sample."""
    batch = load_batch(dataset, [*range(len(dataset))])
    parts = batch.values() if isinstance(batch, dict) else batch
    found = set()
    for rows in zip(*(part.numpy() for part in parts), strict=True):
        found.add(b"".join(row.tobytes() for row in rows))
    return found


def test_splits_have_no_sample_in_common() -> None:
    train_set, val_set, _ = load_all(DataConfig())
    train_samples = samples(train_set)
    val_samples = samples(val_set)
    assert len(train_samples) > 1
    assert len(val_samples) > 1
    assert not train_samples & val_samples


def test_prepared_inputs_are_normalized_or_in_the_vocabulary() -> None:
    train_set, _, spec = load_all(DataConfig())
    step = max(1, len(train_set) // 1000)
    loaded = load_batch(train_set, [*range(0, len(train_set), step)])
    prepare = Prepare(spec, DataConfig())
    batch = prepare(loaded, False, torch.default_generator)
    parts = [*batch.values()] if isinstance(batch, dict) else batch
    inputs = parts[0]
    if inputs.is_floating_point():
        mean = inputs.mean().item()
        std = inputs.std().item()
        is_normalized = abs(mean) < 0.3 and 0.5 < std < 2
        advice = "let Prepare subtract the training set's mean and divide by its deviation"
        assert is_normalized, f"the inputs have mean {mean:.2f}, deviation {std:.2f}: {advice}"
    else:
        assert (
            0
            <= inputs.min()
            < inputs.max()
            < getattr(
                spec,
                "vocabulary",
                0,
            )
        )
