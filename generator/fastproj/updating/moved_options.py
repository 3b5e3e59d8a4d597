"""Which component an option of the releases up to 0.3.0 needs now.

The template's component `moved-options` has the table of these options, with which a project's config.py refuses them.
"""

import re
from collections.abc import Mapping
from typing import Any

TABLE = "renamed.yaml"
"""The table in configs/: each old option, and a text that follows "is now"; `the component X` names a component."""

BY_VALUE: dict[tuple[str, str], str] = {
    ("speed.precision", "fp8"): "fp8",
    ("log.tracker", "trackio"): "trackio",
    ("log.tracker", "wandb"): "wandb",
    ("log.tracker", "mlflow"): "mlflow",
    ("optim.schedule", "range"): "lr-range-test",
}
"""Components that stand for one value of an option."""

NOT_USED: dict[str, tuple[Any, ...]] = {
    "data.cache": ("none",),
    "dist.strategy": ("ddp",),
    "optim.name": ("adamw",),
    "optim.schedule": ("onecycle",),
    "train.on_nonfinite": ("stop",),
    "speed.activation_checkpointing": ("none",),
    "log.tracker": ("none",),
    "log.mfu": ("auto",),
    "debug.sync": ("off",),
}
"""Values, besides null, false and empty ones, that ask for nothing that a component does."""


def component_of(option: str, value: Any, table: Mapping[str, str]) -> str | None:
    """Return the component that an option of an older release needs with this value; None for none."""
    if isinstance(value, str) and (option, value) in BY_VALUE:
        return BY_VALUE[option, value]
    if not value or value in NOT_USED.get(option, ()):
        return None
    named = re.search(r"\bthe component ([a-z0-9-]+)", str(table.get(option, "")))
    return named[1] if named else None
