"""A small regression problem in each form that a dataset may have."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from .config_base import Section
from .errors import UserError


@dataclass(frozen=True)
class DataConfig(Section):
    """The samples."""

    kind: Literal["batches", "samples", "dicts", "nested", "collated", "tensors", "unreadable"] = (
        "batches"
    )
    """What the dataset returns."""
    samples: int = 53
    """Training samples."""
    val_samples: int = 7
    """Validation samples."""
    counts: tuple[int, ...] = ()
    """Positions of each sample that count, of 32, if the batches have them: for `kind=counted`."""


@dataclass(frozen=True)
class Spec:
    """What the model needs to know."""

    inputs: int = 4


class Batches(Dataset[Any]):
    """Returns whole batches."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        """Return the samples of a batch."""
        return self.inputs[indices], self.targets[indices]


class Samples(Batches):
    """Returns one sample at a time."""

    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.targets[index]


class Dicts(Samples):
    """Returns the arguments of `forward` by name."""

    def __getitem__(self, index: int) -> Any:
        return {"inputs": self.inputs[index], "targets": self.targets[index]}


class Nested(Samples):
    """Returns a dict of tuples, which `Prepare` takes apart."""

    def __getitem__(self, index: int) -> Any:
        return {"pair": (self.inputs[index], self.targets[index])}


class Collated(Samples):
    """Returns samples of different lengths, which only its own `collate_fn` can stack."""

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index].repeat(1 + index % 3), self.targets[index]

    def collate_fn(self, samples: list[Any]) -> tuple[Tensor, Tensor]:
        """Cut the inputs to one length."""
        return torch.stack([inputs[:4] for inputs, _ in samples]), torch.stack(
            [target for _, target in samples]
        )


class Unreadable(Samples):
    """Cannot read one of the samples."""

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise UserError("cannot read images/17.png: delete it, or replace it")
        return super().__getitem__(index)


KINDS: dict[str, Any] = {
    "batches": Batches,
    "samples": Samples,
    "dicts": Dicts,
    "nested": Nested,
}
KINDS |= {"collated": Collated, "tensors": TensorDataset, "unreadable": Unreadable}


def load(cfg: DataConfig) -> tuple[Dataset[Any], Dataset[Any], Spec]:
    """Make the samples."""
    inputs = torch.randn(
        cfg.samples + cfg.val_samples, 4, generator=torch.Generator().manual_seed(1)
    )
    targets = inputs.sum(1).sin()
    split = cfg.samples
    if cfg.counts:
        counts = torch.tensor(cfg.counts)
        parts = (inputs, targets, counts)
        train_set = TensorDataset(*(part[:split] for part in parts))
        val_set = TensorDataset(*(part[split:] for part in parts))
        return train_set, val_set, Spec()
    val_kind = Samples if cfg.kind == "unreadable" else KINDS[cfg.kind]
    return (
        KINDS[cfg.kind](inputs[:split], targets[:split]),
        val_kind(inputs[split:], targets[split:]),
        Spec(),
    )


class Prepare(nn.Module):
    """Passes batches on."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(
        self,
        batch: Any,
        training: bool,
        generator: torch.Generator,
    ) -> Any:
        """Return the arguments of the model's `forward`."""
        return batch["pair"] if isinstance(batch, dict) and "pair" in batch else batch
