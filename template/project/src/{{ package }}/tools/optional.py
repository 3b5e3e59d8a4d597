"""`task.py` and `view.py`, which are about the example's data and model: what does not fit yours is said in a line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError

UNFIT = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""What code that was written for other data raises."""


def take(module: str, name: str) -> Any:
    """Return a function, class or constant of `task.py` or `view.py`.

    Raises:
        UserError: there is none, or the module cannot be imported.
    """
    if not Path(__file__).with_name(f"{module}.py").exists():
        raise UserError(f"there is no tools/{module}.py: write one with `{name}`, see contracts.py")
    with fitting(module, name):
        found = import_module(f".{module}", __package__)
    if not hasattr(found, name):
        raise UserError(f"tools/{module}.py has no `{name}`: add one, see contracts.py")
    return getattr(found, name)


def has(module: str, name: str) -> bool:
    """Whether `task.py` or `view.py` has this."""
    with suppress(UserError):
        take(module, name)
        return True
    return False


@contextmanager
def fitting(module: str, name: str) -> Iterator[None]:
    """Turn an error that `task.py` or `view.py` meets with other data or another model into one line.

    Raises:
        UserError: for such an error; it says what it is, and where.
    """
    try:
        yield
    except UNFIT as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        lines = [it.lineno for it in traceback.extract_tb(error.__traceback__) if Path(it.filename).stem == module]
        place = f" at line {lines[-1]}" if lines else ""
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"`{name}` of tools/{module}.py does not fit data.py and model.py "
            f"({type(error).__name__}{place}: {reason}): change it, see contracts.py"
        ) from error
