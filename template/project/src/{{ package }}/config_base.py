"""Base class of the config's sections, whose fields declare the range of their numbers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NoReturn, TypeVar

from .errors import UserError

T = TypeVar("T")


def within(interval: str, default: T) -> T:
    """Return a field with an interval in mathematical notation: "[0, 1)" contains 0 and not 1."""
    return field(default=default, metadata={"interval": interval})


@dataclass(frozen=True)
class Section:
    """A section of the config, `XConfig` with the keys `x.*`.

    Refuses numbers outside their interval.
    """

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            interval = item.metadata.get("interval")
            if interval and isinstance(value, int | float) and not _contains(interval, value):
                self.refuse(item.name, f"it must be in {interval}")

    def apply_size(self, size: Mapping[str, object]) -> None:
        """Set the fields that are at their default to the values of a named size."""
        for item in fields(self):
            if item.name in size and getattr(self, item.name) == item.default:
                object.__setattr__(self, item.name, size[item.name])

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise a UserError about the value of a field."""
        section = re.sub(
            r"\B(?=[A-Z])",
            "_",
            type(self).__name__.removesuffix("Config"),
        ).lower()
        raise UserError(f"{section}.{key} is {getattr(self, key)}: {why}")


def _contains(interval: str, value: float) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = low < value or (low == value and interval[0] == "[")
    return above and (value < high or (value == high and interval[-1] == "]"))
