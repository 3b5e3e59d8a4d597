"""What training expects of data.py and model.py: their types, and what they may have besides.

One function below reads each optional attribute and says what holds without it. Components read
some of them.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from inspect import signature
from types import NoneType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from .errors import UserError, launched_rank

Metrics = Mapping[str, tuple[Any, ...]]
"""By name: its sum over a batch, and the count to divide by, a number or a tensor on the device.

Must have "loss", whose count is what the mean loss is over: samples, tokens, pixels, boxes.
Each batch has the same names, with a count of 0 where nothing counts.
Sums of shape (k,), such as one per class, give the mean over the entries that have a count.
"""


class Samples(Protocol):
    """An ordinary dataset: its `collate_fn`, or torch's default, makes a batch of samples.

    Draw no random numbers in it, as a resumed run would draw others: augment in `Prepare`.
    """

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
    """`build(cfg, spec)` of model.py returns a module like this.

    It may also have:
    - `predict(*inputs)`: inference, with inputs of `forward` by the same names
    - `sample(count, generator)`: images of a generative model, with values from 0 to 1
    - `blocks`: a ModuleList of the repeated layers, which components shard, compile or recompute
    - `no_weight_decay`: the names of matrices that do not decay, such as embeddings
    - `batch_coupled`: true if the loss compares the samples of a batch
    - `ignored`: the class of targets that metrics leave out, such as padding
    - `no_compile_reason`: why torch.compile cannot compile the model
    - `tracked()`: tensors for a tracker, by name, such as images and histograms
    """

    def forward(self, *batch: Any, **named: Any) -> tuple[Tensor, Metrics]:
        """Return the mean loss of a batch, a tuple or a dict, and its metrics.

        The gradient of a step is that of the mean over everything that counts: each loss times the
        count of "loss", summed over micro-batches and ranks, and divided by the sum of the counts.
        Where nothing counts, the loss may be NaN, as F.cross_entropy returns it; a division of your
        own needs `count.clamp(min=1)`, as 0 / 0 has a gradient of NaN.
        """


def load_data(
    data: Any,
    cfg: Any,
    saved: dict[str, Any] | None = None,
    needs_samples: bool = True,
) -> tuple[Any, Any, Any]:
    """Return the training set, the validation set and their `Spec`, from `load` of data.py.

    `saved` has the fields of the `Spec` of a run that exists: `load(cfg, spec)` then gets it, if it
    has this parameter, and a line says if the data have another one now. Raises a UserError if
    `load` returns another `Spec`, with which the weights would not mean the same. Without
    `needs_samples`, such a run needs no data, and its sets are empty.
    """
    if saved is None:
        train_set, val_set, spec = data.load(cfg)
        spec_fields(spec)  # refuses at once what a checkpoint could not keep
        return train_set, val_set, spec
    try:
        spec = data.Spec(**saved)
    except TypeError as error:
        reason = str(error).removeprefix("Spec.__init__() ")
        other = f"the Spec of data.py is not that of the run ({reason})"
        raise UserError(f"{other}: put it back, or train a new run") from None
    if not needs_samples:
        return [], [], spec
    if _takes_spec(data.load) and launched_rank()[0] == 0:
        _say_changes(data.load, cfg, saved)
    train_set, val_set, own = _load(data.load, cfg, spec)
    for name in spec_differences(own, saved):
        now = f"{getattr(own, name)!s:.100}"
        was = f"{saved[name]!s:.100}"
        change = f"{now}, and the run was trained with {was}"
        if now == was:
            change = "not that of the run"
        back = "put the data of the run back, or train a new run"
        raise UserError(f"Spec.{name} of data.py is {change}: {back}")
    return train_set, val_set, spec


def _say_changes(
    load: Callable[..., Any],
    cfg: Any,
    saved: dict[str, Any],
) -> None:
    """Say on stderr if the data would give a new run another `Spec`."""
    try:
        new = load(cfg)[2]
    except Exception as error:  # as the data may be fit for this run only
        print(f"a new run with these data would fail: {error}", file=sys.stderr)
        return
    for name in spec_differences(new, saved):
        was = f"{saved[name]!s:.100}"
        now = f"{getattr(new, name)!s:.100}"
        change = f"was {was}, and a new run's would be {now}"
        if was == now:
            change = "is not that of a new run"
        print(f"the data have changed: Spec.{name} of the run {change}", file=sys.stderr)


def load_test_split(
    data: Any,
    cfg: Any,
    spec: Any = None,
) -> Any:
    """Return `load_test(cfg)` of data.py, the samples that `load` leaves out.

    Raises a UserError if there are none, or data.py has no `load_test`.
    """
    load_test = getattr(data, "load_test", None)
    samples = _load(load_test, cfg, spec) if load_test else None
    if samples is None:
        fix = "train with data.test_fraction, or see load_test in data.py"
        raise UserError(f"there is no test split: {fix}")
    return samples


def _load(
    load: Callable[..., Any],
    cfg: Any,
    spec: Any,
) -> Any:
    """Load with the Spec of a run, if there is a parameter for it."""
    return load(cfg, spec) if _takes_spec(load) else load(cfg)


def _takes_spec(load: Callable[..., Any]) -> bool:
    return "spec" in signature(load).parameters


def describe_data(data: Any, train_set: Any, val_set: Any, spec: Any) -> list[str]:
    """Return `describe(train_set, val_set, spec)` of data.py: lines on how the data were read."""
    describe = getattr(data, "describe", None)
    if describe is None:
        return []
    try:
        return list(describe(train_set, val_set, spec))
    except Exception as error:  # as `load` may return other datasets now, such as a Subset
        return [f"describe of data.py failed: {type(error).__name__}: {error}"]


def spec_fields(spec: Any) -> dict[str, Any] | None:
    """Return the fields of a `Spec` for a checkpoint; None if it is not a dataclass.

    Raises a UserError if a checkpoint, which executes nothing, could not have one of them.
    """
    if not is_dataclass(spec) or isinstance(spec, type):
        return None
    values = asdict(spec)
    for name, value in values.items():
        if not _is_plain(value):
            kind = type(value).__name__
            problem = f"Spec.{name} of data.py has a {kind}, which no checkpoint keeps"
            raise UserError(f"{problem}: make it a number, a text, or a tuple of these")
    return values


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return _is_plain([*value, *value.values()])
    return type(value) in (bool, int, float, str, NoneType)


def spec_differences(spec: Any, saved: dict[str, Any]) -> list[str]:
    """Return the fields in which a `Spec` differs from a saved one by more than rounding."""
    own = _rounded(spec_fields(spec) or {})
    before = _rounded(saved)
    return [name for name in own if name in before and own[name] != before[name]]


def _rounded(values: Any) -> Any:
    """Return values with six digits of each number: the last ones depend on the machine."""

    def rounded(digits: str) -> str:
        return f"{round(float(digits), 9):.6g}"

    return json.loads(json.dumps(values), parse_float=rounded, parse_constant=str)


def whole_batches(dataset: Any) -> Callable[[list[int]], Any] | None:
    """Return `__getitems__`; without it, a batch is made of samples."""
    return getattr(dataset, "__getitems__", None)


def collate_fn(dataset: Any) -> Callable[[Any], Any] | None:
    """Return `collate_fn`, which makes a batch of a list of samples; torch's default without it."""
    return getattr(dataset, "collate_fn", None)


def load_batch(dataset: Any, indices: list[int]) -> Any:
    """Load a batch in this process, in a third of DataLoader's time for table rows."""
    whole = whole_batches(dataset)
    samples = whole(indices) if whole else [dataset[index] for index in indices]
    return (collate_fn(dataset) or collate)(samples)


def collate(batch: Any) -> Any:
    """Stack a list of samples; what a dataset returned as a tuple or a dict is a batch already."""
    stacked = default_collate(batch) if isinstance(batch, list) else batch
    if isinstance(stacked, dict):
        return stacked
    return (stacked,) if isinstance(stacked, Tensor) else tuple(stacked)


def own_loader(dataset: Any) -> Callable[..., Iterator[Any]] | None:
    """Return `batches` of a `Stream`."""
    return getattr(dataset, "batches", None)


def is_in_memory(dataset: Any) -> bool:
    """Return `in_memory`: whether loading is so fast that it needs no worker processes."""
    return bool(getattr(dataset, "in_memory", isinstance(dataset, TensorDataset)))


def blocks(model: Any) -> nn.ModuleList:
    """Return `blocks`, the repeated layers: components shard, compile or recompute each."""
    layers: nn.ModuleList = getattr(model, "blocks", nn.ModuleList())
    return layers


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the trained parameters for an optimizer, with and without weight decay.

    Biases, norms and the model's `no_weight_decay`, such as embeddings, do not decay.
    """
    exempt: Collection[str] = getattr(model, "no_weight_decay", ())
    decayed = []
    rest = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim >= 2 and name not in exempt:
            decayed.append(parameter)
        else:
            rest.append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
