"""The options of a training command, such as {"optim.lr": 0.1}."""

from typing import Any

Options = dict[str, Any]


def flat(config: Any, name: str = "") -> Options:
    """Return the options of a config under their full names."""
    if not isinstance(config, dict) or not config:
        return {name: config} if name else {}
    options: Options = {}
    for key, value in config.items():
        options |= flat(value, f"{name}.{key}" if name else str(key))
    return options


def nested(options: Options) -> dict[str, Any]:
    """Return options as the sections of a config."""
    config: dict[str, Any] = {}
    for name, value in options.items():
        *sections, key = name.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return config


def as_text(options: Options) -> str:
    """Return options as a sentence names them: loader.pin_memory true, optim.max_grad_norm null."""
    return ", ".join(f"{name} {_value(value)}" for name, value in options.items())


def as_arguments(options: Options) -> list[str]:
    """Return options as arguments of a command."""
    return [f"--{name}={_value(value)}" for name, value in options.items()]


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
