"""How each framework names options, and how it is started: `runs` in its entry of copier.yml."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..template.clone import questions_in
from ..template.embedded import QUESTIONS
from .options import Options


@dataclass(frozen=True)
class Framework:
    """The names of a framework; those of plain PyTorch, which the program uses, by default."""

    words: list[str] = field(default_factory=list)
    """Words of the training command before its options."""
    folder: str = "run.dir"
    """The option with the folder of runs."""
    run: str = "run.name"
    """The option with a run's name in it."""
    ranks: str = ""
    """The option with the number of processes, if torchrun does not suffice."""
    resume: str = "--run.name {name}"
    """The options that resume a run."""
    seed: str = "run.seed"
    """The option with the seed of the weights and of the order of the samples."""
    trial: Options = field(
        default_factory=lambda: {
            "train.steps": 1_000_000,
            "train.eval_every": 1_000_000,
            "run.hours": 0.5,
        }
    )
    """Options of a trial, which is ended long before its last step."""
    names: dict[str, str] | None = None
    """Its names of the options, if they differ; it lacks all that are not listed."""
    lacks: list[str] = field(default_factory=list)
    """The options that it does not have, if it has most of them by the same names."""
    values: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Its values of an option, if they differ; it lacks all that are not listed."""

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
    entry = questions_in(QUESTIONS)["frameworks"]["default"].get(name, {})
    return Framework(**entry.get("runs", {}))
