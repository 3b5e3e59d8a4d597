"""What a dataset and a model must provide. Read this before you plug in your own problem.

`data.py` must have

- `DataConfig`, a `Section` (config_base.py) of options, `--data.*`; it may be empty;
- `Spec`, a dataclass of what the model and `Prepare` need to know about the data: numbers, strings, tuples of them;
- `load(cfg) -> Data`;
- `Prepare(spec, cfg)`, a module that turns a batch as loaded into the model's input, on the device. Its
  `forward(batch, training, generator)` takes random numbers from `generator` only.

`data.py` may have `UNIT = "img"`, the word for a sample in the log. What `load` returns may have `in_memory = True`, if
a batch costs so little that a loader worker would only add to it; `problems`, what was skipped, a line each; and
`hint`, how to load it faster, said when a run starts. A dataset may have `unreadable`, see readers/unreadable.py. With
the field `cache: Literal["none", "device"] = "none"` of `DataConfig`, `--data.cache device` keeps all samples on the
device.

`model.py` must have `ModelConfig`, a `Section`, and `build(cfg, spec) -> Model`. A model may have what the protocols
below describe.

`tools/task.py` and `tools/view.py` are about the example. Without them, or with another `Spec` than theirs, `evaluate`
finds the metrics, `export` the model for prepared inputs, and `show` the sizes of a batch. They may have

- `task.Details(spec, device)` with `add(model, prepared_batch)` and `result(world) -> (values, text)`, for `evaluate`;
- `task.plot(trained, prepared_batch) -> Figure`, for `evaluate`;
- `task.ABOUT`, `task.add_options(parser)` and `task.predict(trained, args)`: `predict` on files, say;
- `task.export_module(trained) -> (module, example_inputs)`, for `export`: inputs as loaded, two samples of each;
- `view.summary(data) -> {name: text}` and `view.plot(prepared_batch, spec) -> Figure`, for `show`.

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
from dataclasses import fields, is_dataclass
from types import ModuleType
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
        """A `Spec`: shapes, classes, vocabulary. Saved with each checkpoint."""


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


def loss_and_metrics(model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Metrics]:
    """Call a model with a prepared batch, and return what its `forward` does.

    Raises:
        UserError: that is no loss with metrics; or `forward` does not take the batch.
    """
    try:
        found = call(model, batch)
    except TypeError:
        _check_arguments(model, batch)
        raise
    if isinstance(found, tuple | list) and len(found) == 2:
        loss, metrics = found
        if isinstance(loss, Tensor) and loss.numel() == 1 and isinstance(metrics, Mapping) and "loss" in metrics:
            return loss, metrics
    raise UserError(f"forward of the model returns {_described(found)}: return the loss, a scalar, and dict(loss=...)")


def _check_arguments(model: Any, batch: Batch) -> None:
    try:
        call(inspect.signature(getattr(model, "module", model).forward).bind, batch)
    except TypeError as error:
        raise UserError(
            f"forward of the model does not take what `Prepare` returns ({error}): let one follow the other"
        ) from error


def _described(found: object) -> str:
    """Say what a value is."""
    if isinstance(found, tuple | list):
        return f"a {type(found).__name__} of {', '.join(map(_described, found)) or 'nothing'}"
    if isinstance(found, Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    return f"a dict with {', '.join(map(repr, found))}" if found and isinstance(found, Mapping) else f"{found!r:.40}"


def inputs_of(predict: Callable[..., Any], batch: Batch) -> Batch:
    """Return what `predict` requires of a prepared batch: the first parts, or of a dict those that it names."""
    parameters = inspect.signature(predict).parameters.values()
    if isinstance(batch, Mapping):
        return {parameter.name: batch[parameter.name] for parameter in parameters if parameter.name in batch}
    required = sum(parameter.default is inspect.Parameter.empty for parameter in parameters)
    return batch[:required] if isinstance(batch, tuple | list) else batch


def in_memory(data: Data) -> bool:
    """Whether a batch costs so little that a loader worker would only add to it."""
    return bool(getattr(data, "in_memory", False))


def problems(data: Data) -> tuple[str, ...]:
    """Return what was skipped when the data were loaded."""
    return tuple(getattr(data, "problems", ()))


def check_data(module: ModuleType, found: Data) -> None:
    """Refuse a `spec` from which no checkpoint could build the model again, before anything is trained.

    Raises:
        UserError: it is not a `Spec`, or has a field that is no number, string or tuple of these.
    """
    spec, kind = found.spec, getattr(module, "Spec", None)
    if not (isinstance(kind, type) and is_dataclass(spec) and isinstance(spec, kind)):
        raise UserError(
            f"data.load returned a {type(spec).__name__} as `spec`, and it must be an object of a dataclass named "
            "`Spec` in data.py: see contracts.py"
        )
    for field in fields(spec):
        if not _plain(getattr(spec, field.name)):
            kind = type(getattr(spec, field.name))
            raise UserError(
                f"a checkpoint cannot keep Spec.{field.name}, a {kind.__name__}: make it a number, a string, or a tuple"
            )


def _plain(value: object) -> bool:
    """Whether a value is the same after it was written as JSON and read, but for lists, which become tuples."""
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_plain, value.values()))
    return value is None or isinstance(value, str | int | float)


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
