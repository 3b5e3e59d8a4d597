"""A run's folder: find the one to resume, or create a new one with the config in it."""

import itertools
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from .checkpoint import all_checkpoints, read_manifest, run_of
from .config import Config, as_dict
from .distributed import World
from .errors import UserError
from .run_lock import Opened


def locate(
    cfg: Config, identity: dict[str, Any], world: World, find: Callable[..., str], opened: Opened
) -> tuple[Path, Path | None]:
    """Return the run's folder and, for a run to resume, its newest good checkpoint, by `find`.

    Writes nothing, but locks the folder of a run to resume: its newest checkpoint stays the newest.

    Raises:
        UserError: the run to resume has no good checkpoint, is of another model, is in use, or has other settings than
            `cfg`, without being named by `run.resume`.
    """
    named = cfg.run.dir / cfg.run.name if cfg.run.name else None
    wanted = named if cfg.run.resume in (None, "auto") else Path(cfg.run.resume)
    if named and wanted != named and named.is_dir():
        from .resume import began_from

        wanted = named if began_from(named) == cfg.run.resume else wanted  # the same command, started again
    folder = named or (run_of(wanted) if wanted else None)
    if folder and world.is_main and all_checkpoints(folder / "checkpoints"):
        _lock(cfg, folder, opened)
    found = world.broadcast(find(wanted, cfg.dist, world) if wanted else "")
    if found and not Path(found).exists():
        raise UserError(
            f"rank 0 resumes from {found}, which is not on this machine: share run.dir between the machines"
        )
    if found and cfg.optim.schedule == "range":
        cfg.optim.refuse("schedule", "a range test cannot resume; drop run.resume, or give another run.name")
    if found:
        from .resume import check_same

        check_same(found, read_manifest(Path(found)).get("fixed", {}), identity)
    if found and named and cfg.run.resume is None:
        from .resume import check_settings

        check_settings(named, as_dict(cfg))
    if cfg.run.resume not in (None, "auto") and not found:
        raise UserError(f"run.resume={cfg.run.resume} has no good checkpoint: give a run's folder or a checkpoint")
    folder = folder or cfg.run.dir / world.broadcast(_by_time(cfg.run.dir))
    return folder, Path(found) if found else None


def create(cfg: Config, folder: Path, world: World, resumed: Path | None, opened: Opened) -> None:
    """Create and lock a run's folder with the config in it; one that `run.resume` names keeps its config.

    The folder of a run that ended before its first checkpoint is used again, and its rows are set aside. For the
    checkpoint of another run, it is copied there, with the rows of metrics.

    Raises:
        UserError: it exists and is not to be resumed, cannot be written, or another process uses it.
    """
    if not world.is_main:
        return
    elsewhere = resumed if resumed and run_of(resumed) != folder.resolve() else None
    try:
        if folder.exists() and ((cfg.run.resume is None and resumed is None) or elsewhere):
            from .resume import take_over

            take_over(folder)
        folder.mkdir(parents=True, exist_ok=True)
        locked_before = opened.folder is not None
        _lock(cfg, folder, opened)
        if not locked_before and all_checkpoints(folder / "checkpoints"):
            raise UserError(f"another process has just saved a checkpoint in {folder}: start again to resume it")
        if elsewhere:
            from .resume import copy_run

            copy_run(elsewhere, folder)
        if cfg.run.resume in (None, "auto") or elsewhere:
            (folder / "config.json").write_text(json.dumps(as_dict(cfg), indent=2) + "\n", encoding="utf-8")
    except FileExistsError as error:
        from .resume import exists

        raise exists(folder, elsewhere) from error
    except OSError as error:
        raise _cannot_write(cfg, folder, error) from error


def _by_time(parent: Path) -> str:
    """Return a new name by date and time, with a number if this second has several."""
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(it for it in names if not (parent / it).exists())


def _lock(cfg: Config, folder: Path, opened: Opened) -> None:
    try:
        opened.lock(folder)
    except OSError as error:
        raise _cannot_write(cfg, folder, error) from error


def _cannot_write(cfg: Config, folder: Path, error: OSError) -> UserError:
    copies = cfg.run.resume not in (None, "auto") and cfg.run.name is None
    way_out = "continue it in a new one with --run.name, and --run.dir" if copies else "give another --run.dir"
    return UserError(f"cannot write the run's folder {folder} ({error.strerror or error}): {way_out}")
