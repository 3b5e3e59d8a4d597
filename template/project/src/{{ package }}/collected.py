"""Metrics that are no means over samples, such as AUROC, mAP or BLEU: computed once from all outputs of a validation.

In `forward`, such a metric is `(finish, *outputs)`:

    return loss, {
        "loss": (loss.detach() * len(y), len(y)),
        "auroc": (binary_auroc, scores, y),        # of torchmetrics.functional.classification
        "f1": (self.f1, scores, y),                # an object of torchmetrics, or a function of yours
    }

`finish` gets the outputs of all samples of all ranks, in their order: a tensor whose first dimension is the batch, or a
list with an entry per sample, such as token ids of several lengths. It returns a number; a tensor, of which the mean of
the entries that are not NaN is taken; or a dict of these, named `auroc_<key>`, or `<key>` for the name "".
"""

import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from .distributed import World
from .errors import UserError


class Collected:
    """The outputs of one validation, by metric. They stay on the device."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.functions: dict[str, Callable[..., Any]] = {}
        self.outputs: dict[str, list[list[Any]]] = {}
        """By metric: the outputs of each batch."""

    def add(self, name: str, finish: Callable[..., Any], outputs: tuple[Any, ...]) -> None:
        """Add what `finish` needs of one batch.

        Raises:
            UserError: an output has no entry per sample.
        """
        for output in outputs:
            if not isinstance(output, Tensor | list | tuple) or (isinstance(output, Tensor) and output.ndim == 0):
                what = "a tensor without dimensions" if isinstance(output, Tensor) else type(output).__name__
                raise UserError(f"the metric {name} has {what} as an output: return a tensor or list of all samples")
        self.functions[name] = finish
        # Copies, as CUDA graphs of a compiled model write the next batch's outputs into the same memory.
        parts = [output if isinstance(output, Tensor) else list(output) for output in outputs]
        kept: list[Any] = tree_map_only(Tensor, lambda value: value.detach().clone(), parts, is_leaf=_is_numbers)
        batches = self.outputs.setdefault(name, [])
        if batches and [*map(type, batches[0])] != [*map(type, kept)]:
            raise UserError(f"the metric {name} has other outputs than in the batch before: return the same in each")
        batches.append(kept)

    def finish(self, taken: Iterable[str]) -> dict[str, float]:
        """Return the metrics. All ranks must call it, and all have the same.

        Raises:
            UserError: a function fails, or does not return numbers; or a name is among those that are taken.
        """
        own = {name: _joined(name, batches) for name, batches in self.outputs.items()}
        found: dict[str, float] = {}
        for name, outputs in self._of_all_ranks(own).items():
            finish: Any = self.functions[name]
            try:
                if isinstance(finish, nn.Module):
                    finish = finish.to(self.world.device)
                returned = finish(*outputs)
                if callable(reset := getattr(finish, "reset", None)):  # of torchmetrics, which would keep the outputs
                    reset()
            except Exception as error:  # whatever a function of yours raises
                last = traceback.extract_tb(error.__traceback__)[-1]
                where, why = f"{Path(last.filename).name}:{last.lineno}", " ".join(str(error).split())
                raise UserError(f"the metric {name} fails: {type(error).__name__}: {why} ({where})") from error
            numbers = _numbers(name, returned)
            if both := {*taken, *found} & numbers.keys():
                raise UserError(f"two metrics are named {min(both)}: give one of them another name")
            found |= numbers
        return found

    def _of_all_ranks(self, own: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if self.world.world_size == 1:
            return own
        gathered: list[Any] = [None] * self.world.world_size
        dist.all_gather_object(gathered, tree_map_only(Tensor, lambda value: value.cpu(), own))
        gathered = tree_map_only(Tensor, lambda value: value.to(self.world.device), gathered)
        return {name: _in_order([rank[name] for rank in gathered]) for name in own}


def _is_numbers(entry: Any) -> bool:
    """Whether an entry is a list of numbers, such as token ids: thousands that need no look at each."""
    return isinstance(entry, list) and bool(entry) and isinstance(entry[0], int | float)


def _joined(name: str, batches: list[list[Any]]) -> list[Any]:
    """Return each output over all batches."""
    found: list[Any] = []
    for parts in zip(*batches, strict=True):
        if not isinstance(parts[0], Tensor):
            found.append([entry for part in parts for entry in part])
            continue
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) > 1:
            raise UserError(
                f"the metric {name} has outputs of shapes {' and '.join(map(str, sorted(shapes)))} per sample: return "
                "lists with a tensor per sample"
            )
        found.append(torch.cat(parts))
    return found


def _in_order(ranks: list[list[Any]]) -> list[Any]:
    """Return each output over all ranks, in the order of the samples, which the ranks take in turn.

    Outputs of one metric with different numbers of entries stay in the order of the ranks.
    """
    sizes = [{len(output) for output in outputs} for outputs in ranks]
    joined = [_joined("", [[output] for output in outputs])[0] for outputs in zip(*ranks, strict=True)]
    if any(len(size) != 1 for size in sizes):
        return joined
    places = [(place, rank) for rank, (size,) in enumerate(sizes) for place in range(size)]
    order = sorted(range(len(places)), key=places.__getitem__)
    return [out[torch.tensor(order)] if isinstance(out, Tensor) else [out[place] for place in order] for out in joined]


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Return what a function has returned, by name.

    Raises:
        UserError: it is no number.
    """
    if isinstance(value, Mapping):
        prefix = f"{name}_" * bool(name)
        return {key: it for part in value for key, it in _numbers(f"{prefix}{part}", value[part]).items()}
    try:
        return {name: float(value.detach().double().nanmean() if isinstance(value, Tensor) else value)}
    except (TypeError, ValueError) as error:
        what = type(value).__name__
        raise UserError(f"the metric {name} is of type {what}: its function must return a number or tensor") from error
