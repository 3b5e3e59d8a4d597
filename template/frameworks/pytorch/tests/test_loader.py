"""Batches of ordinary datasets, and sample order."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from ..config import LoaderConfig, TrainConfig
from ..loader import BatchPlan, Loader, train_batches
from .support import CPU

PAIRS = TensorDataset(torch.arange(10.0), torch.arange(10))


class Dicts(Dataset[dict[str, Tensor]]):
    """An ordinary dataset whose samples are dicts."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((3,), float(index))}


class Collated(Dicts):
    """A dataset with its own `collate_fn`."""

    @staticmethod
    def collate_fn(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {"x": torch.cat([sample["x"] for sample in samples])}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (PAIRS, (torch.tensor([1.0, 3.0]), torch.tensor([1, 3]))),
        (Subset(PAIRS, [0, 2, 4, 6]), (torch.tensor([2.0, 6.0]), torch.tensor([2, 6]))),
        (TensorDataset(torch.arange(10)), (torch.tensor([1, 3]),)),
        (Dicts(), {"x": torch.tensor([[1.0] * 3, [3.0] * 3])}),
        (Collated(), {"x": torch.tensor([1.0] * 3 + [3.0] * 3)}),
    ],
)
def test_ordinary_datasets_become_batches(
    dataset: Any,
    expected: Any,
    workers: int,
) -> None:
    batches = list(
        Loader(
            dataset,
            [[0], [1, 3]],
            LoaderConfig(num_workers=workers),
            CPU,
        )
    )
    assert len(batches) == 2
    torch.testing.assert_close(batches[1], expected)


def test_epochs_have_no_sample_twice_and_differ_and_a_resumed_order_continues() -> None:
    plan = BatchPlan.make(
        TrainConfig(
            epochs=2,
            batch_size=5,
            gradient_accumulation_steps=2,
        ),
        105,
        1,
    )
    order = list(train_batches(plan, CPU, 0, 0))
    first = list(chain(*order[:20]))
    second = list(chain(*order[20:]))
    assert len(set(first)) == 100
    assert len(set(second)) == 100
    assert first != second
    assert list(train_batches(plan, CPU, 0, 13)) == order[26:]
