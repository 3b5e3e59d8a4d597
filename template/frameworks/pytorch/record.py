"""A run is what it was trained with: config.json, and what a resumed run must have in common."""

import json
import time
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .errors import UserError

FILE = "config.json"
FIXED = ("data.", "model.", "optim.", "run.seed", "speed.precision", "train.epochs", "train.steps")
"""Options that decide what is trained: their keys begin with these."""


def trained_with(cfg: Any, global_batch_size: int) -> dict[str, Any]:
    """Return what must stay the same when a run is resumed: options by key, and the global batch.

    The global batch stands for the options that divide it over micro-batches and ranks.
    """
    fixed: dict[str, Any] = {}
    for section in fields(cfg):
        options = getattr(cfg, section.name)
        values = asdict(options)
        if values.get("enabled") is False:
            values = {"enabled": False}
        for name, value in values.items():
            key = f"{section.name}.{name}"
            if key.startswith(FIXED) or options.is_fixed:
                fixed[key] = value
    return _as_json(fixed | {"train.global_batch_size": global_batch_size})


def read(folder: Path) -> dict[str, Any]:
    """Return the record of a run; empty if there is none."""
    with suppress(OSError, TypeError, ValueError):
        return dict(json.loads((folder / FILE).read_text(encoding="utf-8")))
    return {}


def read_spec(folder: Path | None) -> dict[str, Any] | None:
    """Return the fields of the Spec in the record of a run, if it has them."""
    spec: dict[str, Any] | None = _as_tuples(read(folder).get("spec")) if folder else None
    return spec


def check(folder: Path, now: dict[str, Any]) -> None:
    """Refuse to resume a run that was trained with something else.

    Raises:
        UserError: it names what differs, with the value of before.
    """
    before = read(folder).get("trained_with", {})
    changes = []
    for key, value in now.items():
        unknown = False if key.endswith(".enabled") else value  # of a component added since
        old = before.get(key, unknown)
        if before and old != value and not _is_same_file(old, value):
            changes.append(f"{key}={json.dumps(old)}, and not {json.dumps(value)}")
    if changes:
        raise UserError(
            f"{folder} was trained with {'; '.join(changes)}: "
            "put back what it was, or use another run.name"
        )


def extend(folder: Path, record: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the new record of a run that is at a step, with those that it replaces as `history`.

    A record differs from the one before in its options, versions, command or commit. `starts` has
    the steps at which the run was started or resumed.
    """
    before = read(folder)
    before.pop("finished", None)
    starts = [start for start in before.pop("starts", []) if start < step]
    history = before.pop("history", [])
    new = _as_json(record)
    if step == 0:
        history = []
    elif before and before != new:
        history.append({"until_step": step} | before)
    new["starts"] = [*starts, step]
    return new | {"history": history} if history else new


def finished_at(folder: Path, cfg: Any) -> int | None:
    """Return the last step of a run that ended with the same options, else None."""
    record = read(folder)
    step: int | None = record.get("finished")
    return step if record.get("config") == _as_json(asdict(cfg)) else None


def create_folder(parent: Path) -> str:
    """Create the folder of a run without a name, and return its name: the date and time."""
    now = time.strftime("%Y-%m-%d-%H-%M-%S")
    name = now
    number = 1
    while True:
        try:
            (parent / name).mkdir(parents=True)
            return name
        except FileExistsError:  # another run started in the same second
            number += 1
            name = f"{now}-{number}"


def _is_same_file(old: Any, new: Any) -> bool:
    """Whether two paths are of the same file or folder, such as photos and ./photos."""
    with suppress(OSError, TypeError, ValueError):
        return Path(old).expanduser().samefile(Path(new).expanduser())
    return False


def _as_tuples(value: Any) -> Any:
    """Return the value with its lists as tuples, which JSON does not have."""
    if isinstance(value, list):
        return tuple(map(_as_tuples, value))
    if isinstance(value, dict):
        return {key: _as_tuples(part) for key, part in value.items()}
    return value


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(values, default=str)))
