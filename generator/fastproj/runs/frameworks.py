"""How each framework names options, and how it is started: frameworks.yaml."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .options import Options


@dataclass(frozen=True)
class Framework:
    """An entry of frameworks.yaml, whose first lines describe the fields."""

    words: list[str]
    folder: str
    run: str
    resume: str
    seed: str
    data: str
    trial: Options
    ranks: str = ""
    names: dict[str, str] | None = None
    lacks: list[str] = field(default_factory=list)
    values: dict[str, dict[Any, Any]] = field(default_factory=dict)

    def name(self, option: str) -> str:
        """Return the framework's name of an option."""
        return (self.names or {}).get(option, option)

    def translate(self, options: Options) -> Options | None:
        """Return options under the framework's names; None if it lacks one of them."""
        if self.names is None:
            return None if options.keys() & set(self.lacks) else options
        translated = {}
        for option, value in options.items():
            values = self.values.get(option, {value: value})
            if option not in self.names or value not in values:
                return None
            translated[self.names[option]] = values[value]
        return translated


@cache
def framework(name: str) -> Framework:
    """Return a framework by its name in the answers."""
    file = Path(__file__).with_name("frameworks.yaml")
    entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    return Framework(**entries.get(name, entries["pytorch"]))
