"""Training from Python, such as in a notebook: `from <package> import Config, train`."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import checkpoint, config, distributed, techniques
from .errors import UserError, in_one_line
from .hooks import Hook
from .kept_settings import settings_kept
from .loader_worker import ended_workers

_lock = threading.RLock()  # a hook may train
framework: Any = import_module(f"{__package__}.train")

if TYPE_CHECKING:
    from .config import Config as Config
else:
    Config = getattr(framework, "LightningConfig", config.Config)  # it has one section more


@dataclass(frozen=True)
class Result:
    """A run that has ended. `open_trained(result.folder, device)` in tools/trained_model.py returns its model."""

    folder: Path
    metrics: dict[str, float]
    """Of the last validation."""
    best: Path | None
    """The best checkpoint, by `train.monitor`."""


class _Folder(Hook):
    """Notes the folder of the run."""

    folder = Path()

    @contextmanager
    def running(self, model: torch.nn.Module, folder: Path) -> Iterator[None]:
        self.folder = folder
        yield


def train(cfg: "Config | None" = None, hooks: Iterable[Hook] = ()) -> Result:
    """Train in this process as configured, by the defaults of the code if `cfg` is None; `hooks` act during the run.

    Signal handlers, the process group, random number generators and torch's settings are as before when it returns.
    Interrupted once, it saves a checkpoint and raises `Stopped`; interrupted twice, it raises KeyboardInterrupt.

    Raises:
        UserError: the config does not fit the data, the machine or the checkpoint; or the loss is not finite.
        Stopped: the run was stopped by request; with `run.resume` it is continued.
    """
    cfg, place = Config() if cfg is None else cfg, _Folder()
    _check(cfg, hooks := [hooks] if isinstance(hooks, Hook) else [*hooks])
    with (
        _alone(),
        torch.enable_grad(),
        settings_kept(cfg.speed.compile != "off"),
        ended_workers(),
        distributed.start(cfg.run.device, owns_process=False) as world,
    ):
        try:
            metrics = framework.train(cfg, world, [*hooks, place])
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # Lightning exits
                raise KeyboardInterrupt from error
            raise
        except UserError as error:
            if "\n" in str(error).strip():  # it was raised in a loader worker
                raise type(error)(in_one_line(error).removeprefix("error: ")) from error
            raise
    folder = place.folder.resolve()
    return Result(folder, dict(metrics), checkpoint.best_of(folder / "checkpoints"))


@contextmanager
def _alone() -> Iterator[None]:
    """Refuse another thread's run at the same time: they share the random number generators and torch's settings."""
    if not _lock.acquire(blocking=False):
        raise UserError("another thread of this process trains: wait for it, or train in another process")
    try:
        yield
    finally:
        _lock.release()


def _check(cfg: object, hooks: list[Any]) -> None:
    if not isinstance(cfg, config.Config):
        raise UserError(f"train takes a Config, and not {cfg!r}: Config.load('configs/default.yaml') returns one")
    if torch.is_inference_mode_enabled():
        raise UserError("train() needs gradients, and this is torch.inference_mode(): call it outside of it")
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise UserError(f"hooks has {hook!r}: give objects of a class that is derived from Hook, in hooks.py")
    if techniques.processes_to_start(cfg.run) > 1:
        cfg.run.refuse("processes", "train() uses this process alone; start a program that calls it with torchrun")
