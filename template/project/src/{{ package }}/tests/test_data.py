"""Data: the split, prepared inputs, ordinary datasets as batches, sample order."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from .. import data
from ..config import LoaderConfig, TrainConfig
from ..data import DataConfig
from ..loader import BatchPlan, Loader, map_tensors, train_batches
from .support import CPU, load_all

PAIRS = TensorDataset(torch.arange(10.0), torch.arange(10))


class Dicts(Dataset[dict[str, Tensor]]):
    """An ordinary dataset whose samples are dicts."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((3,), float(index))}


class Collated(Dicts):
    """A dataset with its own `collate_fn`."""

    @staticmethod
    def collate_fn(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {"x": torch.cat([sample["x"] for sample in samples])}


def whole(dataset: Any) -> Any:
    """Return a dataset as one batch."""
    return next(iter(Loader(dataset, [list(range(len(dataset)))], LoaderConfig(workers=0), CPU)))


def samples(dataset: Any) -> set[bytes]:
    """Return the bytes of each sample."""
    parts: list[list[bytes]] = []
    map_tensors(lambda part: parts.append([row.tobytes() for row in part.numpy()]), whole(dataset))
    return {b"".join(sample) for sample in zip(*parts, strict=True)}


def test_splits_have_no_sample_in_common() -> None:
    train_samples, val_samples = map(samples, load_all(DataConfig())[:2])
    assert min(len(train_samples), len(val_samples)) > 1
    assert not train_samples & val_samples


def test_prepared_inputs_are_normalized_or_in_the_vocabulary() -> None:
    train_set, _, spec = load_all(DataConfig())
    batch = data.Prepare(spec, DataConfig())(whole(train_set), False, torch.default_generator)
    inputs = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    if inputs.is_floating_point():
        assert inputs.mean().item() == pytest.approx(0, abs=1e-3)
        assert inputs.std().item() == pytest.approx(1, abs=1e-2)
    else:
        assert 0 <= inputs.min() < inputs.max() < getattr(spec, "vocabulary", 0)


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
def test_ordinary_datasets_become_batches(dataset: Any, expected: Any, workers: int) -> None:
    batches = list(Loader(dataset, [[0], [1, 3]], LoaderConfig(workers=workers), CPU))
    assert len(batches) == 2
    torch.testing.assert_close(batches[1], expected)


def test_epochs_have_no_sample_twice_and_differ_and_a_resumed_order_continues() -> None:
    plan = BatchPlan.make(TrainConfig(epochs=2, micro_batch=5, accumulate=2), 105, 1)
    order = list(train_batches(plan, CPU, 0, 0))
    first, second = ([index for batch in half for index in batch] for half in (order[:20], order[20:]))
    assert len(set(first)) == len(set(second)) == 100
    assert first != second
    assert list(train_batches(plan, CPU, 0, 13)) == order[26:]
