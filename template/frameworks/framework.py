"""What the frameworks share: checks at the start of `train.py`, and the run's state in their own checkpoints."""

import difflib
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import techniques
from .config import Config
from .config_base import Section
from .errors import UserError
from .log import RunLog
from .resume import check_same, drop_rows_after, set_aside_after
from .run import Run


def require(package: str, minimum: str) -> None:
    """Check that a package is installed.

    Raises:
        UserError: it is not, or is older than version `minimum`, such as "2.6".
    """
    command = f"pip install '{package}>={minimum}'"
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise UserError(f"{package} is not installed: {command}") from error
    parts = [int(part) for part in found.split(".")[:2] if part.isdecimal()]
    if parts < [int(part) for part in minimum.split(".")]:
        raise UserError(f"{package} {found} is too old: {command}")


def refuse(cfg: Config, unsupported: Mapping[str, str]) -> None:
    """Refuse options that a framework does not support: `section.key` for any value but its default.

    Raises:
        UserError: says what to use instead.
    """
    for option, why in unsupported.items():
        key, _, refused = option.partition("=")
        name, _, field = key.partition(".")
        section: Section = getattr(cfg, name)
        value = getattr(section, field)
        if (str(value) == refused) if refused else (value != getattr(type(section), field)):
            section.refuse(field, why)


def listed(value: Any) -> list[Any]:
    """Return an argument that may be one object, several or None as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the known argument nearest to a name; empty if none is near."""
    near = difflib.get_close_matches(str(name), known, 1)
    return f"; did you mean {near[0]}?" if near else ""


class RunState:
    """The state of a run in a checkpoint of the framework, which itself keeps weights, optimizer and scaler."""

    def __init__(self, run: Run) -> None:
        self.run = run
        groups = run.parts.optimizer.param_groups
        self.settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]

    def restore_settings(self) -> None:
        """Give the optimizer the hyperparameters of the config again, after it has loaded those of a checkpoint."""
        for group, settings in zip(self.run.parts.optimizer.param_groups, self.settings, strict=True):
            group.update(settings)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as plain values and tensors. All ranks must call it.

        Raises:
            UserError: the weights are sharded.
        """
        cfg = self.run.parts.cfg
        if cfg.dist.strategy == "fsdp":
            cfg.dist.refuse("strategy", "only the run's own checkpoints, in its folder, can hold sharded weights")
        self.run.count_updates()  # of the last step too
        fixed = json.loads(json.dumps(self.run.parts.identity, default=str))
        own = {"results": self.run.results, "fixed": fixed, "row": self.run.meter.state_dict()}
        return {**self.run.state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state's step; later rows of metrics are dropped, and later checkpoints set aside.

        The weights are those of the model, unless the state has others as `model`.

        Raises:
            UserError: it is of another model or run.
        """
        run, progress = self.run, self.run.progress
        check_same("the checkpoint", state["fixed"], run.parts.identity)
        for hook in run.parts.hooks:
            hook.load_state_dict({"model": run.parts.model.state_dict(), **state})
        progress.load_state_dict(state)
        if techniques.unfreeze_step(run.parts.cfg, progress.step) != run.unfreeze_step:
            raise UserError(f"the checkpoint is after train.unfreeze_step={run.unfreeze_step}: use run.resume, or null")
        run.results = state["results"]
        run.meter.load_state_dict(state["row"])
        run.order.first_step = run.row_first_step = progress.step
        run.train_batches, run.micro_step, run.saved_step = iter(run.train_loader), 0, 0
        run.saver.wait()
        run.skipped_before = progress.step - progress.updates - techniques.skipped_steps(run.parts.scaler)
        sinks = run.log.sinks
        run.log.close()
        if run.parts.world.is_main:
            drop_rows_after(progress.step, run.log.file, not progress.validation_due)
            set_aside_after(progress.step, run.folder)
        run.log = RunLog(run.folder, run.parts.cfg.log, run.log.console, progress.step, not progress.validation_due)
        run.log.sinks = sinks
