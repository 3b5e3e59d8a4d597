"""What `fastproj tune` tries, in order. Each stage starts from what the stages before it kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .options import LIGHTNING, Options, as_text
from .project import Machine, TrainedProject

STAGES = (
    "precision",
    "channels_last",
    "compile",
    "batch",
    "workers",
    "prefetch",
    "pinning",
    "cache",
    "lr",
)


@dataclass(frozen=True)
class Setting:
    """The project, the machine, and the options that are in force."""

    project: TrainedProject
    machine: Machine
    recipe: Options
    """Options of the first trial, by the framework's names."""
    processes: int

    def value(self, option: str, kept: Options) -> Any:
        """Return the value of an option, given by its name in plain PyTorch."""
        name = LIGHTNING.get(option, option) if self.project.lightning else option
        return kept.get(option, self.recipe.get(name))

    def candidates(self, stage: str, kept: Options) -> list[Options]:
        """Return the options that a stage compares with those in force; none if it does not apply here."""
        on_gpu, workers = self.machine.device != "cpu", self.value("loader.workers", kept)
        if stage == "precision":
            return [{"speed.precision": it} for it in self._precisions()]
        if stage == "channels_last":
            return (
                [{"speed.channels_last": it} for it in (True, False)] if self.has("Conv2d") else []
            )
        if stage == "compile":
            return [{"speed.compile": "model"}, {"speed.compile": "off"}]
        if stage == "batch":
            return self._batches(kept)
        if stage == "workers":
            most = max(self.machine.cores // self.processes, 1)
            return [{"loader.workers": it} for it in sorted({0, 1, 2, 4, 8, most}) if it <= most]
        if stage == "prefetch" and workers and not self.project.lightning:
            return [{"loader.prefetch_factor": it} for it in (4, 8)]
        if stage == "pinning" and on_gpu:
            return [{"loader.pin_memory": it} for it in (True, False)]
        if stage == "cache" and "cache" in self.project.components:
            where = ("memory", "device") if on_gpu else ("memory",)
            return [{"cache.enabled": True, "cache.where": it} for it in where]
        return []

    def differing(self, stage: str, kept: Options) -> dict[str, Options]:
        """Return those candidates that change an option, each under a name."""
        given = self.candidates(stage, kept)
        return {
            as_text(it): it
            for it in given
            if any(self.value(name, kept) != value for name, value in it.items())
        }

    def accumulated(self, micro_batch: int) -> Options:
        """Return the options for a micro-batch that keep the global batch of the recipe."""
        options: Options = {
            "train.micro_batch": micro_batch,
            "train.accumulate": self.batch() // micro_batch,
        }
        return (
            options
            if self._value("train.global_batch") is None
            else options | {"train.global_batch": None}
        )

    def _batches(self, kept: Options) -> list[Options]:
        """Halve the samples of a step and rank as often as possible, down to half of the present micro-batch."""
        size, least = self.batch(), self._value("train.micro_batch") // 2
        found = []
        while size >= max(least, 1):
            if self.batch() % size == 0:
                found.append(self.accumulated(size))
            size //= 2
        return found

    def batch(self) -> int:
        """Return the samples of a step and rank."""
        total, micro = self._value("train.global_batch"), int(self._value("train.micro_batch"))
        return (
            int(total) // self.processes if total else micro * int(self._value("train.accumulate"))
        )

    def _value(self, option: str) -> Any:
        return self.value(option, {})

    def _precisions(self) -> list[str]:
        if self.machine.device != "cuda":
            return ["bf16", "fp32"]
        newer = ["bf16", "tf32"] if self.machine.capability >= (8, 0) else []
        return [*newer, *(["fp16"] if self.machine.capability >= (7, 0) else []), "fp32"]

    def has(self, word: str) -> bool:
        """Whether the model's code has a word."""
        model: Path = self.project.folder / "src" / self.project.package / "model.py"
        return word in model.read_text(encoding="utf-8") if model.is_file() else False
