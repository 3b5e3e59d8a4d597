"""What only an interrupted or a resumed run needs, besides loading its checkpoint."""

import json
import math
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .checkpoint import BEST, all_checkpoints, best_of, read_manifest, run_of, step_name
from .console import shown
from .errors import UserError
from .run_lock import LOCK, locked

UNFINISHED = "unfinished-"
RESUMES = "resumes.json"
"""Says after how many rows of metrics a run was resumed, each time."""

SETTINGS = ("data", "model", "train", "lora", "optim", "dist", "speed", "trainer")
"""The sections of the config with the values that change the result of a run."""


def check_same(checkpoint: object, fixed: dict[str, Any], identity: dict[str, Any]) -> None:
    """Compare what must not change within a run with what `checkpoint` has as `fixed`.

    Raises:
        UserError: some differ; names the first three.
    """
    here, there = _leaves(json.loads(json.dumps(identity, default=str))), _leaves(fixed)
    differing = _differences(there, here, {**there, **here})
    if differing:
        raise UserError(f"{checkpoint} is of another model or run ({differing}): use its values, or start a new run")


def check_settings(folder: Path, config: dict[str, dict[str, Any]]) -> None:
    """Compare the settings of a run with those in its folder; of options that both have.

    Raises:
        UserError: some differ; names the first three.
    """
    try:
        kept = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"cannot read {folder}/config.json ({error}): continue the run with --run.resume auto"
        ) from None
    here, there = (_leaves({name: values.get(name, {}) for name in SETTINGS}) for values in (config, kept))
    differing = _differences(there, here, [key for key in here if key in there])
    if differing:
        raise UserError(
            f"{shown(folder)} has a run with other settings ({differing}): give another --run.name, or continue it "
            "with --run.resume auto"
        )


def _differences(there: dict[str, Any], here: dict[str, Any], keys: Iterable[str]) -> str:
    """Name the first three of the keys whose values differ."""
    differing = [key for key in keys if there.get(key) != here.get(key)]
    return ", ".join(
        f"{key} is {_short(there.get(key))} there and {_short(here.get(key))} here" for key in differing[:3]
    )


def _short(value: object, limit: int = 80) -> str:
    """A value for a message, such as the beginning of a tokenizer."""
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


@contextmanager
def same_structure(checkpoint: object) -> Iterator[None]:
    """Load a state that may lack something, or have it in another form.

    Raises:
        UserError: it does.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, EOFError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(
            f"{checkpoint} has another structure ({why}): resume from another, or start a new run"
        ) from error


def set_aside_after(step: int, folder: Path) -> None:
    """Rename a run's checkpoints of later steps than it resumes from, as they are not of the run that now begins."""
    checkpoints = folder / "checkpoints"
    for newer in all_checkpoints(checkpoints):
        if newer.name > step_name(step):
            aside = newer.with_name(f"abandoned-{newer.name}")
            shutil.rmtree(aside, ignore_errors=True)
            newer.rename(aside)
    if best_of(checkpoints) is None and not (checkpoints / BEST).is_dir():
        (checkpoints / BEST).unlink(missing_ok=True)


def began_from(folder: Path) -> str | None:
    """Return the `run.resume` of the command that created a run with checkpoints."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(config["run"]["resume"]) if all_checkpoints(folder / "checkpoints") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def copy_run(checkpoint: Path, folder: Path) -> None:
    """Copy a checkpoint into the folder of a new run; and from its run the best so far, and the rows of metrics."""
    name, best, source = step_name(read_manifest(checkpoint)["step"]), best_of(checkpoint.parent), run_of(checkpoint)
    if best is not None and best.name < name:
        _copy_files(best, folder / "checkpoints" / best.name)
    _copy_files(checkpoint, folder / "checkpoints" / name)
    if best is not None and best.name <= name:
        (folder / "checkpoints" / BEST).write_text(f"{best.name}\n", encoding="utf-8")
    for file in ("metrics.jsonl", RESUMES):
        if source is not None and (source / file).is_file():
            shutil.copyfile(source / file, folder / file)


def _copy_files(folder: Path, target: Path) -> None:
    """Copy a checkpoint, without its permissions."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in folder.iterdir():
        if file.is_file():
            shutil.copyfile(file, partial / file.name)
    partial.rename(target)


def take_over(folder: Path) -> None:
    """Make room for a new run in the folder of one that ended before its first checkpoint.

    If that one has logged rows, its files are moved to the subfolder `unfinished-<n>`.

    Raises:
        FileExistsError: it has checkpoints, or is not of a run.
        UserError: the run is not over.
    """
    _check_unfinished(folder)
    with locked(folder):
        _check_unfinished(folder)
        rows = folder / "metrics.jsonl"
        if not rows.is_file() or not rows.stat().st_size:
            return
        aside = folder / f"{UNFINISHED}{1 + len(list(folder.glob(f'{UNFINISHED}*')))}"
        aside.mkdir()
        for path in sorted(folder.iterdir()):
            if path.name != LOCK and not path.name.startswith(UNFINISHED):
                path.rename(aside / path.name)
    print(f"{shown(folder)} has no checkpoint: its files are in {shown(aside)} now")


def _check_unfinished(folder: Path) -> None:
    """Raise FileExistsError unless a folder is empty, or of a run without any checkpoint."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    checkpoints = [path for path in (folder / "checkpoints").glob("*") if not path.name.startswith(".")]
    is_run = "config.json" in names and not names.isdisjoint({LOCK, "metrics.jsonl"})
    if not names <= {LOCK} and (checkpoints or not is_run):
        raise FileExistsError


def exists(folder: Path, elsewhere: Path | None) -> UserError:
    """Return the error of a run that cannot have a folder, as that exists; `elsewhere` is what it was to resume."""
    if not all_checkpoints(folder / "checkpoints"):
        return UserError(f"{folder} exists, and is not of a run: give another --run.name")
    if elsewhere:
        return UserError(f"{folder} exists: resume it with --run.resume auto, or give another --run.name")
    return UserError(
        f"{folder} exists, and none of its checkpoints is good: begin again with --run.resume auto, or give another "
        "--run.name"
    )


def drop_rows_after(step: int, file: Path, validated: bool) -> None:
    """Drop the rows of later steps, which the resumed run repeats, from metrics.jsonl; `RESUMES` has how many are left.

    If it was not `validated`, the validation after `step` is repeated as well.
    """
    last = (step, validated)
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    places = [_place_of(line) for line in lines]
    kept = [line for line, place in zip(lines, places, strict=True) if place <= last]
    damaged = sum(step == math.inf for step, _ in places[:-1])  # the last may have been interrupted
    if damaged:
        what = f"{damaged} lines of {file} are" if damaged > 1 else f"1 line of {file} is"
        warnings.warn(f"{what} damaged, and left out", stacklevel=2)
    resumes = {rows for rows in [*resumed_after(file.parent), len(kept)] if 0 < rows <= len(kept)}
    for name, text in (
        (RESUMES, json.dumps({"after_rows": sorted(resumes)})),
        (file.name, "".join(f"{line}\n" for line in kept)),
    ):
        partial = file.with_name(f"{name}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(file.with_name(name))


def resumed_after(folder: Path) -> list[int]:
    """Return after how many rows of metrics a run was resumed, in order, as far as it is known."""
    try:
        rows = json.loads((folder / RESUMES).read_text(encoding="utf-8"))["after_rows"]
        return sorted(int(it) for it in rows)
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _place_of(line: str) -> tuple[float, bool]:
    """The step of a row, and whether it is of a validation; infinity for a row that was only partly written."""
    try:
        row = json.loads(line)
        return float(row["step"]), row["split"] == "val"
    except (ValueError, KeyError, TypeError):
        return float("inf"), False


def after_end(signal_name: str, folder: Path, step: int) -> dict[str, str]:
    """Return what is left of a run that a second signal ends after `step` optimizer steps, and how to continue it."""
    facts = {"ended": f"by {signal_name} after step {step}"}
    kept = all_checkpoints(folder / "checkpoints")
    if not kept:
        return facts | {"kept": "no checkpoint, as none was saved yet"}
    return facts | {"kept": shown(kept[-1]), "to continue": f"the same command with --run.resume {shown(folder)}"}
