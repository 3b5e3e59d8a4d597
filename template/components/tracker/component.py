"""The base class of the trackers: which rows are sent, on which rank; an error of a tracker does not end the run."""

import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
from ..contracts import tracked_method
from ..distributed import World
from ..errors import UserError
from ..run import Run

PROJECT = __name__.split(".")[0]
"""The name of the project, under which a tracker has its runs."""


@dataclass
class Row:
    """What is sent at once: the metrics of some steps, or those of a validation with the model's own values."""

    split: str
    """train or val."""
    step: int
    scalars: dict[str, float]
    images: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, Tensor] = field(default_factory=dict)

    def prefixed(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values with names such as `train/loss`, for a tracker that has both splits in one place."""
        return {f"{self.split}/{name}": value for name, value in values.items()}


class Tracker(Component):
    """Sends a run to a tracking library from rank 0, in this process.

    An error of the library switches it off.

    A model may have a method `tracked`, which returns tensors by name. Every rank calls it at each
    validation, with the weights that are validated: uint8 tensors (H, W) or (H, W, 3) are images,
    1-D ones histograms, 0-D ones scalars.
    """

    def __init__(self, cfg: Section, world: World) -> None:
        self.world, self.off = world, False
        self.kept: dict[str, Any] = {}
        """The tracker's own name of this run, and the last steps that were sent; `file` in the run's folder has it."""
        self.file: FileIO | None = None

    def open(self, folder: Path, kept: dict[str, Any], about: dict[str, Any]) -> None:
        """Begin or continue the tracked run of a folder: `kept` persists, such as its id, `about` is config.json."""
        raise NotImplementedError

    def send(self, row: Row) -> None:
        """Send a row."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what was sent, before a checkpoint: a resumed run does not send it again."""

    def close(self, error: BaseException | None) -> None:
        """End the tracked run, with the error that ends the training."""

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        found = find_spec(self.name)
        if (
            found is None or found.origin is None
        ):  # a folder of that name, such as the one that wandb writes
            raise UserError(
                f"{self.name}.enabled needs the package {self.name}: install the dependencies again"
            )

    def on_log(self, run: Run, row: dict[str, float]) -> None:
        with self._safely():
            self._send(run, Row("train", run.step, dict(row)))

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        with self._safely():
            row = Row("val", run.step, dict(results))
            for name, value in _tracked(run.model).items():
                _sort(row, name, value)
            self._send(run, row)

    def on_train_end(self, run: Run) -> None:
        error = sys.exception()
        with self._safely():
            if self.file is not None and not self.off:
                self.close(error)
        if self.file is not None:
            self.file.close()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: a run may have another tracker than before.

        Each checkpoint calls it, so flush.
        """
        with self._safely():
            if self.file is not None and not self.off:
                self.flush()
        return {}

    def _send(self, run: Run, row: Row) -> None:
        """Send a row, unless an earlier process has sent it: a resumed run repeats the steps after its checkpoint."""
        if self.off or self.world.rank > 0:
            return
        if self.file is None:  # not at the start of the training, when the folder is not locked yet
            file = run.folder / f"tracker-{self.name}.json"
            self.kept = _read(file)
            self.open(run.folder.absolute(), self.kept, _read(run.folder / "config.json"))
            self.file = FileIO(file, "w")
            self._keep(self.file)
        sent = self.kept.setdefault("sent", {})
        if row.step > sent.get(row.split, -1):
            sent[row.split] = row.step
            self._keep(self.file)  # first: after a kill, a row is rather missing than there twice
            self.send(row)

    def _keep(self, file: FileIO) -> None:
        file.seek(0)
        # at once, so that a kill cannot cut it; it never gets shorter
        file.write(json.dumps(self.kept).encode())

    @contextmanager
    def _safely(self) -> Iterator[None]:
        """Switch the tracker off after an error, with one line."""
        try:
            yield
        except Exception as error:
            if not self.off and self.world.rank == 0:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                print(
                    f"warning: {self.name} failed and is off until the end of this run: {reason}",
                    file=sys.stderr,
                )
            self.off = True


def _tracked(model: nn.Module) -> dict[str, Tensor]:
    """Return what the model's method `tracked` returns, without a change of its mode or of the random numbers."""
    tracked = tracked_method(model)
    if tracked is None:
        return {}
    model.eval()
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):  # a GPU's generator is seeded for each batch
            return {name: value.to("cpu", copy=True) for name, value in tracked().items()}
    finally:
        model.train()


def _sort(row: Row, name: str, value: Tensor) -> None:
    """Add one of the model's own values to the images, histograms or scalars of a row."""
    if value.dtype == torch.uint8 and (
        value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3)
    ):
        row.images[name] = value
    elif value.ndim == 1 and len(value):
        row.histograms[name] = value.float()
    elif value.ndim == 0:
        row.scalars[name] = value.item()
    else:
        raise ValueError(
            f"tracked() of the model returns {name} of shape {tuple(value.shape)} and {value.dtype}"
        )


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
