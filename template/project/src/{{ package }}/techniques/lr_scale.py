"""Learning rates of parts of the model: `lr_scale` of a model, see contracts.py."""

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ..errors import UserError


def split(optimizer: torch.optim.Optimizer, model: nn.Module, lr: float) -> None:
    """Divide each parameter group by the factors that the model has, which are its `lr_scale` then.

    Raises:
        UserError: a group has another learning rate than `lr`, which the schedule would replace, or a factor is wrong.
    """
    for number, group in enumerate(optimizer.param_groups):
        if group["lr"] != lr:
            raise UserError(
                f"parameter group {number} of the optimizer has lr={group['lr']:g}, which the schedule would replace: "
                f"give it lr={lr:g}, which is optim.lr, and lr_scale={group['lr'] / lr:g}"
            )
    names = [name for name, _ in model.named_parameters()]
    given: Any = getattr(model, "lr_scale", {})
    if not isinstance(given, Mapping):
        raise UserError(
            f"lr_scale of the model is of type {type(given).__name__}: it maps names of parameters to factors"
        )
    scales = by_name(given, names)
    by_parameter = {id(p): scales[name] for name, p in model.named_parameters() if name in scales}
    parts: Any = getattr(optimizer, "parts", [optimizer])  # Muon is used with AdamW
    for part in parts:
        part.param_groups[:] = [it for group in part.param_groups for it in _divided(group, by_parameter)]
    optimizer.param_groups = [group for part in parts for group in part.param_groups]


def by_name(given: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return the factor of each parameter that has one, by name.

    Raises:
        UserError: a factor is not positive, or a pattern matches no name.
    """
    known, found = [*names], dict[str, float]()
    for pattern, factor in given.items():
        matched = [pattern] if pattern in known else [name for name in known if fnmatchcase(name, pattern)]
        if not (isinstance(factor, int | float) and 0 < factor < math.inf):
            raise UserError(
                f"lr_scale of the model has {factor!r} for {pattern!r}: a factor must be positive and finite"
            )
        if not matched:
            raise UserError(f"lr_scale of the model has {pattern!r}, and no parameter has such a name")
        found |= {name: float(factor) for name in matched if name not in found or name == pattern}
    return found


def _divided(group: dict[str, Any], scales: Mapping[int, float]) -> list[dict[str, Any]]:
    found: dict[float, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        scale = scales.get(id(parameter), 1.0) * group.get("lr_scale", 1.0)
        found.setdefault(scale, []).append(parameter)
    return [{**group, "params": parameters, "lr_scale": scale} for scale, parameters in found.items()]
