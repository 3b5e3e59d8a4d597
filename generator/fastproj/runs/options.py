"""The options of a training command, under the names of plain PyTorch and of LightningCLI."""

from typing import Any

Options = dict[str, Any]
"""Values by the names that plain PyTorch and Accelerate have for the options."""
LIGHTNING = {
    "loader.pin_memory": "data.pin_memory",
    "loader.workers": "data.workers",
    "log.every": "trainer.log_every_n_steps",
    "optim.clip": "trainer.gradient_clip_val",
    "optim.lr": "model.lr",
    "speed.channels_last": "model.channels_last",
    "speed.compile": "model.compile_mode",
    "speed.cudnn_benchmark": "trainer.benchmark",
    "speed.precision": "trainer.precision",
    "train.accumulate": "trainer.accumulate_grad_batches",
    "train.eval_every": "trainer.val_check_interval",
    "train.micro_batch": "data.batch_size",
}
"""The names that LightningCLI has for them."""
VALUES: dict[str, Options] = {
    "speed.precision": {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
    "speed.compile": {"model": "default"},
}
"""The values that LightningCLI has for them, if they differ."""


def for_framework(options: Options, lightning: bool) -> Options | None:
    """Return options under a framework's names, or None if it lacks one of them."""
    if not lightning:
        return options
    found: Options = {}
    for name, value in options.items():
        if name == "train.global_batch":
            continue  # Lightning has no option that overrides the accumulation
        if name not in LIGHTNING or (name == "speed.precision" and value not in VALUES[name]):
            return None
        found[LIGHTNING[name]] = VALUES.get(name, {}).get(value, value)
    return found


def flat(value: Any, name: str = "") -> Options:
    """Return nested options under their full names."""
    if not isinstance(value, dict) or not value:
        return {name: value} if name else {}
    found: Options = {}
    for key, inner in value.items():
        found |= flat(inner, f"{name}.{key}" if name else str(key))
    return found


def nested(options: Options) -> dict[str, Any]:
    """Return options as the sections of a config file."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        *sections, key = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return found


def as_text(options: Options) -> str:
    """Return options as a sentence names them: optim.fused true, optim.clip null."""
    return ", ".join(f"{name} {_value(value)}" for name, value in options.items())


def as_arguments(options: Options) -> list[str]:
    """Return options as arguments of a command."""
    return [f"--{name}={_value(value)}" for name, value in options.items()]


def _value(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
