"""Base class of the config's sections, whose fields declare the range of their numbers."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    ClassVar,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from .errors import UserError

T = TypeVar("T")


def within(
    interval: str,
    default: T,
    overridden_by: str = "",
) -> T:
    """Return a field with an interval in mathematical notation: "[0, 1)" contains 0 and not 1.

    Another key, such as "train.steps", may override it: see config_files.py.
    """
    return field(
        default=default,
        metadata={"interval": interval, "overridden_by": overridden_by},
    )


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types that a union consists of, or the type itself."""
    if get_origin(kind) in (Union, UnionType):
        return get_args(kind)
    return (kind,)


def is_folder_name(name: str) -> bool:
    """Return whether this names a folder inside another one: not absolute, and without `..`."""
    path = Path(name)
    return bool(path.name) and ".." not in path.parts and not path.is_absolute()


def sized(
    sizes: Mapping[Any, Mapping[str, Any]],
) -> Callable[[type[T]], type[T]]:
    """Let a section's key `size` choose the values of the keys that are not given: a decorator.

    Raises:
        UserError: there is no such size.
    """

    def decorate(section: type[T]) -> type[T]:
        init: Any = section.__init__

        @wraps(init)
        def init_of_size(self: T, **given: Any) -> None:
            size = given.get("size")
            if size is not None and size not in sizes:
                known = ", ".join(map(str, sizes))
                raise UserError(f"model.size is {size}: it must be {known}")
            values = dict(sizes.get(size, {}))
            values.update(given)
            init(self, **values)

        section.__init__ = init_of_size  # type: ignore[assignment]
        return section

    return decorate


@dataclass(frozen=True)
class Section:
    """A section of the config, `XConfig` with the keys `x.*`.

    Refuses numbers outside their interval. A path that begins with `~` is in your home folder.
    """

    is_fixed: ClassVar[bool] = False
    """Of a component: whether a resumed run must have the same values, as they decide what is
    trained."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Path):  # the shell leaves the ~ of --run.dir=~/runs
                object.__setattr__(self, item.name, Path(os.path.expanduser(value)))
            interval = item.metadata.get("interval")
            if interval and isinstance(value, int | float) and not contains(interval, value):
                self.refuse(item.name, f"it must be in {interval}")

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise a UserError about the value of a field."""
        raise UserError(f"{self._name()}.{key} is {getattr(self, key)}: {why}")

    def _name(self) -> str:
        name = type(self).__name__.removesuffix("Config")
        return re.sub(r"\B(?=[A-Z])", "_", name).lower()


def contains(interval: str, value: float) -> bool:
    """Whether a number is in an interval of `within`."""
    low, high = map(float, interval[1:-1].split(","))
    if value == low:
        return interval.startswith("[")
    if value == high:
        return interval.endswith("]")
    return low < value < high
