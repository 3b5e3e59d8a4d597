"""What a dataset and a model must provide. Read this before you plug in your own problem.

`data.py` has a `DataConfig`, `load(cfg) -> Data`, and a module `Prepare(spec, cfg)` that turns a batch as loaded into
the model's input, on the device. `model.py` has a `ModelConfig` and `build(cfg, spec) -> Model`.

A problem with 100 samples of 4 numbers and 3 classes:

    class Table:                                    # a Dataset
        def __len__(self): return 100
        def __getitems__(self, indices):            # a whole batch in one call
            return self.x[indices], self.y[indices]  # (n, 4) float32, (n,) int64

    class Classifier(nn.Module):                    # a Model
        def forward(self, x, y):                    # the tensors that `Prepare` returned
            loss = F.cross_entropy(self.layer(x), y)
            return loss, {"loss": (loss.detach() * len(y), len(y))}
"""

from collections.abc import Sized
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

Batch = tuple[Tensor, ...]
"""Tensors whose first dimension is the batch: as a dataset returns them, or as `Prepare` does."""

Sums = dict[str, tuple[Tensor, Tensor | int]]
"""By metric: its sum over a batch, and the count to divide by, so that every mean over batches and ranks is exact. Must
have "loss". Sums of shape (k,), one entry per class for example, give the mean over the entries that have a count."""


class Dataset(Sized, Protocol):
    """One split. `__getitems__` returns a whole batch, in uint8 or integers where the source is."""

    def __getitems__(self, indices: list[int]) -> Batch: ...


class Data(Protocol):
    """What `load` returns."""

    @property
    def train(self) -> Dataset: ...

    @property
    def val(self) -> Dataset: ...

    @property
    def spec(self) -> Any:
        """A dataclass of what the model and `Prepare` need: shapes, classes, vocabulary. Saved with each checkpoint."""

    @property
    def in_memory(self) -> bool:
        """Whether a batch costs so little that a loader worker would only add to it."""


class Model(Protocol):
    """An `nn.Module` whose forward pass takes a prepared batch."""

    def forward(self, *batch: Tensor) -> tuple[Tensor, Sums]:
        """Return the mean loss, a scalar, and the metrics."""


@runtime_checkable
class Predicts(Protocol):
    """Optional: inference, for `evaluate`, `predict` and `export`. Takes the inputs without the targets."""

    def predict(self, *inputs: Tensor) -> Any: ...


@runtime_checkable
class HasBlocks(Protocol):
    """Optional: the repeated layers, for activation checkpointing, FSDP, Muon and compiling block by block."""

    blocks: nn.ModuleList | nn.Sequential


@runtime_checkable
class NotCompiled(Protocol):
    """Optional: why the model is better not compiled."""

    no_compile_reason: str


def can_predict(model: nn.Module) -> bool:
    """Whether the model has `predict`."""
    return isinstance(model, Predicts)


def blocks_of(model: nn.Module) -> nn.ModuleList | nn.Sequential:
    """Return the model's repeated layers; an empty list where it names none."""
    named = isinstance(model, HasBlocks) and isinstance(model.blocks, nn.ModuleList | nn.Sequential)
    return model.blocks if named else nn.ModuleList()  # type: ignore[return-value]


def no_compile_reason(model: nn.Module) -> str:
    """Return why the model is not to be compiled; empty where it may be."""
    return model.no_compile_reason if isinstance(model, NotCompiled) else ""
