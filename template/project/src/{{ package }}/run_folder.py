"""The run's folder: made, or found again."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from . import checkpoint
from .config import Config, as_dict
from .distributed import World
from .errors import UserError


def open_folder(cfg: Config, fixed: dict[str, Any], world: World) -> tuple[Path, Path | None]:
    """Make the folder of a new run, or find that of one to continue and its newest good checkpoint.

    Raises:
        UserError: a new run's folder exists; or the one to continue has no good checkpoint, or is of another model.
    """
    found = ""
    if cfg.run.resume is not None and world.is_main:
        wanted = cfg.run.dir / str(cfg.run.name) if cfg.run.resume == "auto" else Path(cfg.run.resume)
        found = str(checkpoint.find(wanted) or "")
    found = world.share(found)
    if found and not Path(found).exists():
        raise UserError(f"the main rank resumes from {found}, which is not here: share run.dir between the machines")
    if found and cfg.optim.schedule == "range":
        cfg.optim.refuse("schedule", "a range test is a run of its own; drop run.resume, or give another run.name")
    if found:
        checkpoint.check_same(Path(found), fixed)
    if cfg.run.resume not in (None, "auto"):
        if not found:
            raise UserError(
                f"run.resume={cfg.run.resume} has no good checkpoint: give a run's folder, or a checkpoint's"
            )
        return Path(found).parent.parent, Path(found)
    folder = cfg.run.dir / (cfg.run.name or world.share(datetime.now().strftime("%Y-%m-%d_%H-%M-%S")))
    if world.is_main:
        _make_folder(cfg, folder)
    return folder, Path(found) if found else None


def _make_folder(cfg: Config, folder: Path) -> None:
    """Make a run's folder with the config in it, unless it exists and is not to be continued."""
    try:
        folder.mkdir(parents=True, exist_ok=cfg.run.resume == "auto")
        (folder / "config.json").write_text(json.dumps(as_dict(cfg), indent=2) + "\n", encoding="utf-8")
    except FileExistsError as error:
        raise UserError(f"{folder} exists: continue it with --run.resume auto, or give another --run.name") from error
    except OSError as error:
        raise UserError(f"cannot write the run's folder {folder} ({error.strerror}): give another --run.dir") from error
