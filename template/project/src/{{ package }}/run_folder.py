"""A run's folder: find the one to resume, or create a new one with the config in it."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from .checkpoint import read_manifest
from .config import Config, as_dict
from .distributed import World
from .errors import UserError
from .run_lock import locked


def locate(cfg: Config, identity: dict[str, Any], world: World, find: Callable[..., str]) -> tuple[Path, Path | None]:
    """Return the run's folder and, for a run to resume, its newest good checkpoint, by `find`. Writes nothing.

    Raises:
        UserError: the run to resume has no good checkpoint, is of another model, or has other settings than `cfg`,
            without being named by `run.resume`.
    """
    named = cfg.run.dir / cfg.run.name if cfg.run.name else None
    wanted = named if cfg.run.resume in (None, "auto") else Path(cfg.run.resume)
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
    if cfg.run.resume not in (None, "auto"):
        if not found:
            raise UserError(f"run.resume={cfg.run.resume} has no good checkpoint: give a run's folder or a checkpoint")
        return Path(found).parent.parent, Path(found)
    folder = named or cfg.run.dir / world.broadcast(datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    return folder, Path(found) if found else None


def create(cfg: Config, folder: Path, world: World, resumed: Path | None) -> AbstractContextManager[Any]:
    """Create a run's folder with the config in it, and return its lock; one that `run.resume` names keeps its config.

    The folder of a run that ended before its first checkpoint is used again, and its rows are set aside.

    Raises:
        UserError: it exists and is not to be resumed, cannot be written, or another process uses it.
    """
    if not world.is_main:
        return nullcontext()
    held = ExitStack()
    try:
        if cfg.run.resume is None and resumed is None and folder.exists():
            from .resume import take_over

            take_over(folder)
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(folder))
        if cfg.run.resume in (None, "auto"):
            (folder / "config.json").write_text(json.dumps(as_dict(cfg), indent=2) + "\n", encoding="utf-8")
        return held
    except FileExistsError as error:
        raise UserError(f"{folder} exists: resume it with --run.resume auto, or give another --run.name") from error
    except OSError as error:
        raise UserError(f"cannot write the run's folder {folder} ({error.strerror}): give another --run.dir") from error
