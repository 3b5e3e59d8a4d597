"""What `fastproj tune` tries, in order. Each stage starts from what the stages before it kept."""

from typing import Any

from .options import Options, as_text
from .trials import Trainer

STAGES = (
    "precision",
    "channels_last",
    "compile",
    "batch",
    "workers",
    "pinning",
    "cache",
)


def candidates(
    trainer: Trainer,
    stage: str,
    kept: Options,
) -> dict[str, Options]:
    """Return the options, each under a name, that a stage compares with those in force."""
    names = trainer.project.names
    in_force = trainer.recipe | (names.translate(kept) or {})
    candidates = {}
    for options in _stages(trainer)[stage]:
        translated = names.translate(options)
        if translated is not None and not translated.items() <= in_force.items():
            candidates[as_text(options)] = options
    return candidates


def _stages(trainer: Trainer) -> dict[str, list[Options]]:
    """Return what each stage tries; nothing if it does not apply here."""
    switch = [True, False]
    precisions = ["bf16", "tf32", "fp16", "fp32"] if trainer.on_gpu else ["bf16", "fp32"]
    most = max(trainer.machine.cores // trainer.project.processes, 1)
    workers = [count for count in (0, 1, 2, 4, 8) if count < most]
    cached = ["memory", "device"] if trainer.on_gpu else ["memory"]
    has_cache = "cache" in trainer.project.components
    return {
        "precision": _each("speed.precision", precisions),
        "channels_last": _each("speed.channels_last", switch if convolves(trainer) else []),
        "compile": _each("speed.compile", ["model", "off"]),
        "batch": _batches(trainer),
        "workers": _each("loader.num_workers", [*workers, most]),
        "pinning": _each("loader.pin_memory", switch if trainer.on_gpu else []),
        "cache": [{"cache.enabled": True, "cache.where": where} for where in cached if has_cache],
    }


def _each(option: str, values: list[Any]) -> list[Options]:
    return [{option: value} for value in values]


def _batches(trainer: Trainer) -> list[Options]:
    """Halve the samples of a step and rank, down to half of the recipe's micro-batch."""
    total = samples_of_step(trainer)
    size = total
    batches = []
    while size >= max(_number(trainer, "train.batch_size") // 2, 1):
        if total % size == 0:
            batches.append(accumulated(trainer, size))
        size //= 2
    return batches


def accumulated(trainer: Trainer, batch_size: int) -> Options:
    """Return the options for a micro-batch that keep the global batch of the recipe."""
    options: Options = {
        "train.batch_size": batch_size,
        "train.gradient_accumulation_steps": samples_of_step(trainer) // batch_size,
    }
    if trainer.value("train.global_batch_size") is not None:
        options["train.global_batch_size"] = None
    return options


def samples_of_step(trainer: Trainer) -> int:
    """Return the samples of a step and rank."""
    if total := _number(trainer, "train.global_batch_size"):
        return total // trainer.project.processes
    accumulation_steps = _number(trainer, "train.gradient_accumulation_steps")
    return _number(trainer, "train.batch_size") * accumulation_steps


def _number(trainer: Trainer, option: str) -> int:
    """Return the recipe's value of an option; 0 if it is not a number."""
    value = trainer.value(option)
    return value if isinstance(value, int) else 0


def convolves(trainer: Trainer) -> bool:
    """Whether the model has convolutions of images."""
    project = trainer.project
    model = project.folder / "src" / project.package / "model.py"
    return model.is_file() and b"Conv2d" in model.read_bytes()
