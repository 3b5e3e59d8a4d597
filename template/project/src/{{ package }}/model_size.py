"""A model that does not fit into memory."""

import re
from dataclasses import fields
from typing import Any

import torch

from .errors import UserError


def check_memory(cfg: Any, error: Exception) -> None:
    """Turn an error of `build` that is of an allocation into one line with the largest option of `model`.

    Raises:
        UserError: the model does not fit into memory.
    """
    too_large = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if not too_large and not re.search(r"allocate memory|[Oo]verflow", str(error)):
        return
    tried = re.search(r"allocate (\d+) bytes", str(error))
    size = f", of which one tensor has {int(tried[1]) / 2**30:,.0f} GiB" if tried else ""
    raise UserError(f"{_largest(cfg)}: the model does not fit into memory{size}; lower it") from error


def _largest(cfg: Any) -> str:
    """Return the largest integer option, and its value."""
    sizes = {item.name: getattr(cfg, item.name) for item in fields(cfg)}
    name = max((name for name in sizes if type(sizes[name]) is int), key=sizes.__getitem__, default="")
    return f"model.{name} is {sizes[name]}" if name else "model.py"
