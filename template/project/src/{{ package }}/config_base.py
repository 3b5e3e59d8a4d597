"""Base class of the config's sections, whose fields declare the range of their numbers."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NoReturn, TypeVar, get_args

from .errors import UserError

T = TypeVar("T")


def within(interval: str, default: T) -> T:
    """Return a field with a default and an interval in mathematical notation: "[0, 1)" contains 0 and not 1."""
    return field(default=default, metadata={"interval": interval})


@dataclass(frozen=True)
class Section:
    """A section of the config, `XConfig` with options `x.*`. Refuses numbers outside their interval."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, interval = getattr(self, item.name), item.metadata.get("interval")
            if value is None and type(None) not in get_args(item.type):
                self.refuse(item.name, "it needs a value")
            if "\0" in str(value):
                self.refuse(item.name, "it must not have a null byte")
            if interval and isinstance(value, int | float) and not _contains(interval, value):
                others = "".join(f", or {word}" for word in _words(item.type))
                self.refuse(item.name, f"it must be {describe(interval)}{others}")

    def take(self, size: Mapping[str, object]) -> None:
        """Set the fields that are at their default to the values of a named size."""
        for item in fields(self):
            if item.name in size and getattr(self, item.name) == item.default:
                object.__setattr__(self, item.name, size[item.name])

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise a UserError about the value of a field."""
        section = type(self).__name__.removesuffix("Config").lower()
        value = getattr(self, key)
        shown = json.dumps(value) if isinstance(value, bool | None) else str(value) or "empty"
        raise UserError(f"{section}.{key} is {shown if shown.isprintable() else ascii(shown)}: {why}")


def _ends(interval: str) -> tuple[float, float]:
    low, high = interval[1:-1].split(",")
    return float(low), float(high)


def _contains(interval: str, value: float) -> bool:
    low, high = _ends(interval)
    return (low < value or (value == low and interval[0] == "[")) and (
        value < high or (value == high and interval[-1] == "]")
    )


def describe(interval: str) -> str:
    """Return an interval in words, such as `from 1 to 64`."""
    low, high = _ends(interval)
    start = f"{'from' if interval[0] == '[' else 'above'} {low:.10g}"
    if math.isinf(high):
        return f"{low:.10g} or above" if interval[0] == "[" else start
    return f"{start} to {'' if interval[-1] == ']' else 'below '}{high:.10g}"


def _words(type_: object) -> list[str]:
    """Return what else a field accepts: `null`, and the values of a Literal."""
    words = [arg for part in get_args(type_) for arg in get_args(part)]
    return [*map(str, words), *["null"] * (type(None) in get_args(type_))]
