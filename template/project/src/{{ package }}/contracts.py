"""What training expects of data.py and model.py: their types, and what they may have besides.

An optional attribute is read by one function below, which says what holds without it.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .errors import UserError

Metrics = Mapping[str, tuple[Any, ...]]
"""By name: its sum over a batch, and the count to divide by, a number or a tensor on the device.

Must have "loss", whose count is what the mean loss is over: samples, tokens, pixels, boxes.
Sums of shape (k,), such as one per class, give the mean over the entries that have a count.
"""


class Samples(Protocol):
    """An ordinary dataset: its `collate_fn`, or torch's default, makes a batch of samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Batches(Protocol):
    """A dataset that returns a batch at once, which is faster for data in memory."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: list[int]) -> Any:
        """Return a batch, a tuple or a dict of tensors at any depth; or a list of samples."""


class Stream(Protocol):
    """A dataset with its own loader, such as the one of the component `streams`."""

    def __len__(self) -> int: ...

    def batches(
        self,
        cfg: Any,
        workers: int,
        pin_memory: bool,
    ) -> Iterator[Any]:
        """Yield the batches of this rank, without end."""


Dataset = Samples | Batches | Stream
"""`load(cfg, spec=None)` of data.py returns the training set, the validation set and a `Spec`."""


class Prepare(Protocol):
    """`Prepare(spec, cfg)` of data.py, a module: what happens to a batch on the device."""

    def __call__(
        self,
        batch: Any,
        training: bool,
        generator: torch.Generator,
    ) -> Any:
        """Return the arguments of `forward`; augment in training, with the generator."""


class Model(Protocol):
    """`build(cfg, spec)` of model.py returns a module like this."""

    def forward(self, *batch: Any, **named: Any) -> tuple[Tensor, Metrics]:
        """Return the mean loss of a batch, a tuple or a dict, and its metrics.

        The gradient of a step is that of the mean over everything that counts: each loss times the
        count of "loss", summed over micro-batches and ranks, and divided by the sum of the counts.
        Where nothing counts, the loss may be NaN, as F.cross_entropy returns it; a division of your
        own needs `count.clamp(min=1)`, as 0 / 0 has a gradient of NaN.
        """


def load_data(data: Any, cfg: Any, saved: dict[str, Any] | None = None) -> tuple[Any, Any, Any]:
    """Return `load(cfg)` of data.py: both sets and their `Spec`, or that of a run if it is given.

    A `load(cfg, spec)` reads the data with that one. Raises a UserError if another one finds a
    different `Spec`: the weights would not mean the same.
    """
    if saved is None:
        train_set, val_set, spec = data.load(cfg)
        spec_fields(spec)  # refuses at once what a checkpoint could not keep
        return train_set, val_set, spec
    spec = _restore_spec(data, saved)
    if "spec" in signature(data.load).parameters:
        train_set, val_set, _ = data.load(cfg, spec)
        return train_set, val_set, spec
    train_set, val_set, own = data.load(cfg)
    for name in spec_differences(own, saved):
        new = str(getattr(own, name))
        old = str(saved[name])
        raise UserError(
            f"Spec.{name} of data.py is {_part(new, old)}, and the run was trained with "
            f"{_part(old, new)}: put the data of the run back, or train a new run"
        )
    return train_set, val_set, spec


def spec_differences(spec: Any, saved: dict[str, Any]) -> list[str]:
    """Return the fields in which a `Spec` differs from a saved one by more than rounding."""
    return [
        name
        for name, value in (spec_fields(spec) or {}).items()
        if not _is_same(value, saved.get(name, value))
    ]


def spec_fields(spec: Any) -> dict[str, Any] | None:
    """Return the fields of a `Spec` for a checkpoint; None if it is not a dataclass.

    Raises a UserError if a checkpoint, which executes nothing, could not have one of them.
    """
    if not is_dataclass(spec) or isinstance(spec, type):
        return None
    values = asdict(spec)
    for name, value in values.items():
        if not _is_plain(value):
            raise UserError(
                f"Spec.{name} of data.py has a {type(value).__name__}, which no checkpoint keeps: "
                "make it a number, a text, or a tuple of these"
            )
    return values


def describe_data(data: Any, train_set: Any, val_set: Any, spec: Any) -> list[str]:
    """Return `describe(train_set, val_set, spec)` of data.py: lines on how the data were read."""
    describe = getattr(data, "describe", None)
    if describe is None:
        return []
    try:
        return list(describe(train_set, val_set, spec))
    except Exception as error:  # as `load` may return other datasets now, such as a Subset
        return [f"describe of data.py failed: {type(error).__name__}: {error}"]


def _restore_spec(data: Any, saved: dict[str, Any]) -> Any:
    try:
        return data.Spec(**saved)
    except TypeError as error:
        reason = str(error).removeprefix("Spec.__init__() ")
        raise UserError(
            f"the Spec of data.py is not that of the run ({reason}): "
            "put it back, or train a new run"
        ) from None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return type(value) in (bool, int, float, str, type(None))


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal, but for the rounding of numbers on another machine."""
    if isinstance(value, float) and isinstance(other, float):
        # as text for NaN and infinity
        return math.isclose(value, other, rel_tol=1e-6, abs_tol=1e-9) or str(value) == str(other)
    if isinstance(value, tuple | list) and isinstance(other, tuple | list):
        pairs = zip(value, other, strict=False)
        return len(value) == len(other) and all(_is_same(*pair) for pair in pairs)
    if isinstance(value, dict) and isinstance(other, dict):
        return _is_same([*value.items()], [*other.items()])
    return bool(value == other)


def _part(text: str, other: str) -> str:
    """Return a text; of a long one, where it begins to differ from another one."""
    if len(text) <= 100:
        return text
    begin = 0
    while text[: begin + 20] == other[: begin + 20]:
        begin += 1
    return f"...{text[begin : begin + 80]}..."


def load_test_split(
    data: Any,
    cfg: Any,
    section: str = "data",
    spec: Any = None,
) -> Any:
    """Return `load_test(cfg)` of data.py, the samples that `load` leaves out.

    It gets the `Spec` of a run if it has the parameter `spec`. Raises a UserError if there are no
    samples, or data.py has no `load_test`.
    """
    load_test = getattr(data, "load_test", None)
    samples = None
    if load_test and spec is not None and "spec" in signature(load_test).parameters:
        samples = load_test(cfg, spec)
    elif load_test:
        samples = load_test(cfg)
    if samples is None:
        raise UserError(
            "there is no test split: "
            f"train with {section}.test_fraction, or see load_test in data.py"
        )
    return samples


def whole_batches(dataset: Any) -> Callable[[list[int]], Any] | None:
    """Return `__getitems__`; without it, a batch is made of samples."""
    return getattr(dataset, "__getitems__", None)


def collate_fn(dataset: Any) -> Callable[[Any], Any] | None:
    """Return `collate_fn`, which makes a batch of a list of samples; torch's default without it."""
    return getattr(dataset, "collate_fn", None)


def own_loader(dataset: Any) -> Callable[..., Iterator[Any]] | None:
    """Return `batches` of a `Stream`."""
    return getattr(dataset, "batches", None)


def is_in_memory(dataset: Any) -> bool:
    """Return `in_memory`: whether loading is so fast that it needs no worker processes."""
    return bool(
        getattr(
            dataset,
            "in_memory",
            isinstance(dataset, TensorDataset),
        )
    )


def is_on_device(dataset: Any) -> bool:
    """Return `on_device`: whether its batches are in GPU memory, and not on the host."""
    return bool(getattr(dataset, "on_device", False))


def blocks(model: Any) -> nn.ModuleList:
    """Return `blocks`, the repeated layers: components shard, compile or recompute each."""
    layers: nn.ModuleList = getattr(model, "blocks", nn.ModuleList())
    return layers


def no_weight_decay(model: Any) -> Collection[str]:
    """Return `no_weight_decay`: names of matrices that do not decay, such as embeddings."""
    names: Collection[str] = getattr(model, "no_weight_decay", ())
    return names


def needs_gradients_in_validation(model: Any) -> bool:
    """Whether the loss has derivatives in it, as of a physics-informed network."""
    return bool(getattr(model, "needs_gradients_in_validation", False))


def is_batch_coupled(model: Any) -> bool:
    """Return `batch_coupled`: whether the loss compares the samples of a batch."""
    return bool(getattr(model, "batch_coupled", False))


def predict_method(model: Any) -> Callable[..., Tensor] | None:
    """Return `predict`, for inference: it takes inputs of `forward`, by the same names."""
    return getattr(model, "predict", None)


def sample_method(model: Any) -> Callable[[int, torch.Generator], Tensor] | None:
    """Return `sample(count, generator)` of a generative model: images with values from 0 to 1."""
    return getattr(model, "sample", None)


def tracked_method(model: Any) -> Callable[[], dict[str, Tensor]] | None:
    """Return `tracked`: tensors for a tracker, by name, such as images and histograms."""
    return getattr(model, "tracked", None)


def ignored_target(model: Any) -> int | None:
    """Return `ignored`: the class of targets that metrics leave out, such as padding."""
    return getattr(model, "ignored", None)


def no_compile_reason(model: Any) -> str:
    """Return `no_compile_reason`: why torch.compile cannot compile the model."""
    return str(getattr(model, "no_compile_reason", ""))
