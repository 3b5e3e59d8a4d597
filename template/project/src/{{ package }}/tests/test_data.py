"""Data: the split, and prepared inputs."""

from typing import Any

import torch

from ..data import DataConfig, Prepare
from ..loader import load_batch
from .support import load_all


def samples(dataset: Any) -> set[bytes]:
    """Return the bytes of each sample."""
    batch = load_batch(dataset, [*range(len(dataset))])
    parts = batch.values() if isinstance(batch, dict) else batch
    found = set()
    for rows in zip(*(part.numpy() for part in parts), strict=True):
        found.add(b"".join(row.tobytes() for row in rows))
    return found


def test_splits_have_no_sample_in_common() -> None:
    train_samples, val_samples = map(samples, load_all(DataConfig())[:2])
    assert min(len(train_samples), len(val_samples)) > 1
    assert not train_samples & val_samples


def test_prepared_inputs_are_normalized_or_in_the_vocabulary() -> None:
    train_set, _, spec = load_all(DataConfig())
    indices = range(0, len(train_set), max(1, len(train_set) // 1000))
    loaded = load_batch(train_set, [*indices])
    batch = Prepare(spec, DataConfig())(
        loaded,
        False,
        torch.default_generator,
    )
    inputs = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
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
