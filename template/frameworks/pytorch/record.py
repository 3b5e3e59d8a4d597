"""A run is what it was trained with: config.json, and what a resumed run must have in common."""

import json
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from .errors import UserError
from .summary import SUMMARY, describe_versions, write_text

FILE = "config.json"
TRAINED = "trained_with"
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


def read(folder: Path, name: str = FILE) -> dict[str, Any]:
    """Return the record of a run, or another file of JSON; empty if there is none."""
    with suppress(OSError, TypeError, ValueError):
        values = dict(json.loads((folder / name).read_text(encoding="utf-8")))
        is_damaged = any(not isinstance(values.get(key, {}), dict) for key in ("config", TRAINED))
        return {} if is_damaged else values
    return {}


def check(
    folder: Path,
    cfg: Any,
    now: dict[str, Any],
) -> None:
    """Refuse to resume a run that was trained with something else.

    An option that is newer than the run had its default.

    Raises:
        UserError: it names what differs, with the value of before.
    """
    before = read(folder).get(TRAINED, {})
    changes = []
    for key, value in now.items():
        old = before.get(key, _default(cfg, key, value))
        if isinstance(old, str):
            old = os.path.expanduser(old)  # as 0.4.0 recorded a path
        if before and old != value:
            changes.append(f"{key}={json.dumps(old)}, and not {json.dumps(value)}")
    if changes:
        raise UserError(
            f"{folder} was trained with {'; '.join(changes)}: "
            "put back what it was, or use another run.name"
        )


def _default(cfg: Any, key: str, value: Any) -> Any:
    """Return the default of an option; the value, if the default follows from other options."""
    section, _, name = key.partition(".")
    default = getattr(type(getattr(cfg, section, None)), name, None)
    return value if default is None else default


def begin(
    folder: Path,
    values: dict[str, Any],
    step: int,
) -> str:
    """Write config.json of a run that starts or is resumed at a step.

    It has these values, the versions, the command and the commit; where they differ from those of
    before, these are in `history`. `starts` has the steps of all starts.

    Returns:
        What makes a resumed run differ from an uninterrupted one by rounding, or nothing; or that
        there was no record to compare it with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    before = read(folder) if step else {}
    is_lost = step > 0 and TRAINED not in before
    starts = [start for start in before.pop("starts", []) if start < step]
    history = before.pop("history", [])
    new = values | {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
        },
        "command": sys.argv,
        "commit": _commit(),
    }
    new = _as_json(new)
    if before and before != new:
        history.append({"until_step": step} | before)
    record = new | {"starts": [*starts, step], "history": history}
    write_text(folder / FILE, json.dumps(record, indent=2) + "\n")
    if is_lost:
        return f"{FILE} was missing or damaged: options are not compared with those of before"
    return describe_versions(before.get("versions", {}), new["versions"])


def _commit() -> str:
    """Return the commit of this code, with -dirty if files differ from it; empty without git."""
    folder = str(Path(__file__).parent)
    describe = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--dirty"]
    with suppress(OSError):
        done = subprocess.run(describe, capture_output=True, text=True, check=False)
        return done.stdout.strip()
    return ""


def note_changes(
    folder: Path,
    train_set: Any,
    val_set: Any,
) -> None:
    """Say on stderr if there are not as many samples as the run had.

    Those of a stream are not known.
    """
    recorded = read(folder).get(TRAINED, {})
    for name, split in (("training", train_set), ("validation", val_set)):
        if isinstance(split, IterableDataset):
            continue
        samples = len(split)
        before = recorded.get(f"{name} samples", samples)
        if samples != before:
            changed = f"the data have {samples:,} {name} samples, and had {before:,} in the run"
            print(changed, file=sys.stderr)


def finished_at(folder: Path, cfg: Any) -> int | None:
    """Return the last step of a run that ended with the same options, else None.

    How often it logs, and how it loads samples, may differ.
    """
    summary = read(folder, SUMMARY)
    if summary.get("exit") != "finished":
        return None
    before = read(folder).get("config", {})
    for section, options in _as_json(asdict(cfg)).items():
        if section not in ("log", "loader") and options != before.get(section):
            return None
    return int(summary["steps"])


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


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(values, default=str)))
