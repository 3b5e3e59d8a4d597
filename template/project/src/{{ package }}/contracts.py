"""What a dataset and a model must provide. Read this before you plug in your own problem.

`data.py` has a `DataConfig`, `load(cfg) -> Data`, and a module `Prepare(spec, cfg)` that turns a batch as loaded into
the model's input, on the device. Optional is `UNIT = "img"`, the word for a sample in the log; `problems` of `Data`,
what was skipped, a line each; `hint` of `Data`, how to load it faster, said when a run starts; and `unreadable` of a
dataset, see `readers/unreadable.py`. `model.py` has a `ModelConfig` and `build(cfg, spec) -> Model`.

A problem with 100 samples of 4 numbers and 3 classes:

    class Table:                                    # a Dataset
        def __len__(self): return 100
        def __getitems__(self, indices):            # a whole batch in one call; or one sample in `__getitem__(index)`
            return self.x[indices], self.y[indices]  # (n, 4) float32, (n,) int64

    class Classifier(nn.Module):                    # a Model
        def forward(self, x, y):                    # the tensors that `Prepare` returned
            loss = F.cross_entropy(self.layer(x), y)
            return loss, {"loss": (loss.detach() * len(y), len(y))}
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from typing import Any, Protocol

from torch import Tensor, nn

from .errors import UserError

Batch = Any
"""Tensors whose first dimension is the batch: one, or a tuple, list or dict of them, at any depth; as a dataset returns
them, or as `Prepare` does. A model gets a tuple as its arguments, a dict as its named arguments. Other values, such as
names, stay as they are; an object of another class with a method `to` is moved to the device as a tensor is."""

Sums = dict[str, tuple[Tensor, Tensor | int]]
"""By metric: its sum over a batch, and the count to divide by, so that every mean over batches and ranks is exact. Must
have "loss". Sums of shape (k,), one entry per class for example, give the mean over the entries that have a count."""

Metrics = Mapping[str, tuple[Any, ...]]
"""Sums, and metrics that are no means, such as AUROC, mAP or BLEU: `(finish, *outputs)`, a function or an object
of torchmetrics, and what it is called with: the outputs of all validation samples. See `collected.py`."""


class Dataset(Sized, Protocol):
    """One split. `__getitems__` returns a whole batch, in uint8 or integers where the source is.

    `load` may as well return datasets that return one sample, a list of samples, or a stream of them, such as those of
    torch and of Hugging Face: `techniques/datasets.py` makes this of them.
    """

    def __getitems__(self, indices: list[int]) -> Batch: ...


class HasCollateFn(Protocol):
    """Optional, of a dataset or of `Data`: what makes a batch of samples, for example pads sequences to one length."""

    def collate_fn(self, samples: list[Any]) -> Batch: ...


class HasOrder(Protocol):
    """Optional, of a dataset: the order of an epoch, where any order would be slow to read."""

    def epoch_order(self, seed: int, epoch: int) -> Any:
        """Return what is sliced as a tensor of all indices is: see `readers/shards.py`."""


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

    def forward(self, *batch: Tensor) -> tuple[Tensor, Metrics]:
        """Return the mean loss, a scalar, and the metrics."""


class Predicts(Protocol):
    """Optional: inference, for `evaluate`, `predict` and `export`. Takes the inputs without the targets."""

    def predict(self, *inputs: Tensor) -> Any: ...


class HasBlocks(Protocol):
    """Optional: the repeated layers, for activation checkpointing, FSDP, Muon and compiling block by block."""

    blocks: nn.ModuleList | nn.Sequential


class NotCompiled(Protocol):
    """Optional: why the model is better not compiled."""

    no_compile_reason: str


class NoWeightDecay(Protocol):
    """Optional: parameters without weight decay, such as position embeddings; Muon leaves them to AdamW."""

    no_weight_decay: Collection[str]
    """Their names, as in `named_parameters`. Biases, norms and other vectors need not be listed."""


class ScalesLearningRate(Protocol):
    """Optional: parameters that learn at another rate than the rest, as in fine-tuning."""

    lr_scale: Mapping[str, float]
    """Factors of the learning rate, by a parameter's name as in `named_parameters`, or by a pattern of names such as
    "encoder.*"; a name goes before a pattern, and the first pattern that matches before others. See `layer_decay`."""


class HasPhases(Protocol):
    """Optional: parts with losses and updates of their own, one after the other, as in a GAN or actor-critic."""

    phases: Sequence[str]
    """The submodule that each optimizer step trains, in turn: `("critic", "critic", "generator")`; `"encoder+actor"` is
    two. The others get neither gradient nor update. `lr_scale` gives them learning rates of their own."""
    phase: str
    """The phase of this step, whose loss `forward` returns; empty in validation. The run sets it."""


def map_tensors(change: Callable[[Any], Any], batch: Batch) -> Batch:
    """Return a batch with each of its tensors changed; mappings become dicts."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(change, part) for name, part in batch.items()}
    if hasattr(batch, "to"):
        return change(batch)
    if isinstance(batch, tuple | list):
        parts = [map_tensors(change, part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def tensors(batch: Batch) -> list[Any]:
    """Return what `map_tensors` changes."""
    found: list[Any] = []
    map_tensors(found.append, batch)
    return found


def size_of(batch: Batch) -> int | None:
    """Return the number of samples in a batch, if that is the first dimension of all its tensors, and else None."""
    sizes = {len(part) if isinstance(part, Tensor) and part.ndim else None for part in tensors(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def call(model: Callable[..., Any], batch: Batch) -> Any:
    """Call a model with a batch as its arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def inputs_of(predict: Callable[..., Any], batch: Batch) -> Batch:
    """Return what `predict` requires of a prepared batch: the first parts, or of a dict those that it names."""
    parameters = inspect.signature(predict).parameters.values()
    if isinstance(batch, Mapping):
        return {parameter.name: batch[parameter.name] for parameter in parameters if parameter.name in batch}
    required = sum(parameter.default is inspect.Parameter.empty for parameter in parameters)
    return batch[:required] if isinstance(batch, tuple | list) else batch


def can_predict(model: nn.Module) -> bool:
    """Whether the model has `predict`."""
    return callable(getattr(model, "predict", None))


def blocks_of(model: nn.Module) -> nn.ModuleList | nn.Sequential:
    """Return the model's repeated layers; an empty list where it names none."""
    # Not isinstance with the protocol: from Python 3.12 on, that misses submodules, which nn.Module keeps in a dict.
    blocks = getattr(model, "blocks", None)
    return blocks if isinstance(blocks, nn.ModuleList | nn.Sequential) else nn.ModuleList()


def no_compile_reason(model: nn.Module) -> str:
    """Return why the model is not to be compiled; empty where it may be."""
    before_0_3 = getattr(model, "eager", "")  # the old name, in a model.py written before 0.3; removed in 0.4
    return str(getattr(model, "no_compile_reason", before_0_3))


def no_weight_decay(model: nn.Module) -> Collection[str]:
    """Return the names of the parameters that the model excludes from weight decay, besides vectors."""
    names: Collection[str] = getattr(model, "no_weight_decay", ())
    return names


def layer_decay(model: nn.Module, factor: float) -> dict[str, float]:
    """Return an `lr_scale` in which each of `blocks` learns `factor` times as fast as the next one.

    For fine-tuning: Howard and Ruder 2018 (arXiv:1801.06146, section 3.2). What is registered before the blocks, such
    as an embedding, counts as one more; what is registered after them learns at the full rate.

    Raises:
        UserError: the model has no `blocks`.
    """
    blocks, number, found = blocks_of(model), 0, {}
    if not len(blocks):
        raise UserError("layer_decay needs a model with `blocks`: see HasBlocks in contracts.py")
    depth = {id(parameter): place for place, block in enumerate(blocks, 1) for parameter in block.parameters()}
    for name, parameter in model.named_parameters():
        number = depth.get(id(parameter), len(blocks) + 1 if number else 0)
        found[name] = factor ** (len(blocks) + 1 - number)
    return found
