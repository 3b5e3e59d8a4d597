"""What `fastproj tune` tries, in order. Each stage starts from what the stages before it kept."""

from dataclasses import dataclass
from typing import Any

from .options import Options, as_text
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
)


@dataclass(frozen=True)
class Setting:
    """The project, the machine, and the options of the recipe."""

    project: TrainedProject
    machine: Machine
    recipe: Options
    """By the framework's names."""
    processes: int

    @property
    def on_gpu(self) -> bool:
        """Whether the project trains on a GPU."""
        return self.machine.device != "cpu"

    def value(self, option: str, kept: Options) -> Any:
        """Return the value in force of an option, given by its name in plain PyTorch."""
        return kept.get(option, self.recipe.get(self.project.names.name(option)))

    def whole_number(self, option: str) -> int:
        """Return the recipe's value of an option; 0 if it is not a number."""
        value = self.value(option, {})
        return value if isinstance(value, int) else 0

    def candidates(self, stage: str, kept: Options) -> dict[str, Options]:
        """Return the options, each under a name, that a stage compares with those in force."""
        names = self.project.names
        in_force = self.recipe | (names.translate(kept) or {})
        candidates = {}
        for options in self._stages(kept)[stage]:
            translated = names.translate(options)
            if translated is not None and not translated.items() <= in_force.items():
                candidates[as_text(options)] = options
        return candidates

    def _stages(self, kept: Options) -> dict[str, list[Options]]:
        """Return what each stage tries; nothing if it does not apply here."""
        switch = [True, False]
        most = max(self.machine.cores // self.processes, 1)
        workers = [count for count in (0, 1, 2, 4, 8) if count < most]
        cached = ["memory", "device"] if self.on_gpu else ["memory"]
        has_cache = "cache" in self.project.components
        return {
            "precision": _each("speed.precision", self._precisions()),
            "channels_last": _each("speed.channels_last", switch if self.convolves() else []),
            "compile": _each("speed.compile", ["model", "off"]),
            "batch": self._batches(),
            "workers": _each("loader.num_workers", [*workers, most]),
            "prefetch": _each(
                "loader.prefetch_factor", [4, 8] if self.value("loader.num_workers", kept) else []
            ),
            "pinning": _each("loader.pin_memory", switch if self.on_gpu else []),
            "cache": [
                {"cache.enabled": True, "cache.where": where} for where in cached if has_cache
            ],
        }

    def accumulated(self, batch_size: int) -> Options:
        """Return the options for a micro-batch that keep the global batch of the recipe."""
        options: Options = {
            "train.batch_size": batch_size,
            "train.gradient_accumulation_steps": self.batch() // batch_size,
        }
        if self.value("train.global_batch_size", {}) is not None:
            options["train.global_batch_size"] = None
        return options

    def _batches(self) -> list[Options]:
        """Halve the samples of a step and rank, down to half of the recipe's micro-batch."""
        size = self.batch()
        batches = []
        while size >= max(self.whole_number("train.batch_size") // 2, 1):
            if self.batch() % size == 0:
                batches.append(self.accumulated(size))
            size //= 2
        return batches

    def batch(self) -> int:
        """Return the samples of a step and rank."""
        if total := self.whole_number("train.global_batch_size"):
            return total // self.processes
        accumulated = self.whole_number("train.gradient_accumulation_steps")
        return self.whole_number("train.batch_size") * accumulated

    def _precisions(self) -> list[str]:
        if self.machine.device != "cuda":
            return ["bf16", "fp32"]
        generation = self.machine.capability[0]
        precisions = ["bf16", "tf32"] if generation >= 8 else []
        return [*precisions, *(["fp16"] if generation >= 7 else []), "fp32"]

    def convolves(self) -> bool:
        """Whether the model has convolutions of images."""
        model = self.project.folder / "src" / self.project.package / "model.py"
        return model.is_file() and b"Conv2d" in model.read_bytes()


def _each(option: str, values: list[Any]) -> list[Options]:
    return [{option: value} for value in values]
