"""The base class of the trackers: which rows are sent, and on which rank.

An error of a tracker does not end the run.
"""

import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
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
from ..distributed import World
from ..errors import UserError
from ..run import Run

PROJECT = __name__.split(".")[0]
"""The name of the project, under which a tracker has its runs."""


@dataclass
class Row:
    """The metrics of some steps, or those of a validation with the model's own values."""

    split: str
    """train or val."""
    step: int
    scalars: dict[str, float]
    images: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, Tensor] = field(default_factory=dict)

    def prefixed(
        self,
        values: dict[str, Any],
    ) -> dict[str, Any]:
        """Return values with names such as `train/loss`, for a tracker without splits."""
        return {f"{self.split}/{name}": value for name, value in values.items()}


class Tracker(Component):
    """Sends a run to a tracking library from rank 0; an error of the library switches it off.

    A model may have a method `tracked`, which returns tensors by name. Every rank calls it at each
    validation, with the weights that are validated: uint8 tensors (H, W) or (H, W, 3) are images,
    1-D ones histograms, 0-D ones scalars.
    """

    def __init__(self, cfg: Section, world: World) -> None:
        self.world = world
        self.off = False
        self.kept: dict[str, Any] = {}
        """The tracker's own name of this run, and the last steps sent: the content of `file`."""
        self.file: FileIO | None = None

    def open(
        self,
        folder: Path,
        kept: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        """Begin or continue the tracked run of a folder.

        `kept` persists, such as its id; `about` is config.json.
        """
        raise NotImplementedError

    def send(self, row: Row) -> None:
        """Send a row."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what was sent, before a checkpoint: a resumed run does not send it again."""

    def close(self, error: BaseException | None) -> None:
        """End the tracked run, with the error that ends the training."""

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        package = find_spec(self.name)
        # without an origin, it is a folder of that name, such as the one that wandb writes
        if package is None or package.origin is None:
            raise UserError(
                f"{self.name}.enabled needs the package {self.name}: install the dependencies again"
            )

    def on_log(
        self,
        run: Run,
        row: dict[str, float],
    ) -> None:
        with self._safely():
            self._send(run, Row("train", run.step, dict(row)))

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        with self._safely():
            row = Row("val", run.step, dict(results))
            _add_tracked(row, run.model)
            self._send(run, row)

    def on_train_end(self, run: Run) -> None:
        error = sys.exception()
        if self.file is not None:
            with self._safely():
                if not self.off:
                    self.close(error)
            self.file.close()

    def state_dict(self) -> dict[str, Any]:
        """Flush, as each checkpoint calls it; a run may have another tracker than before."""
        with self._safely():
            if self.file is not None and not self.off:
                self.flush()
        return {}

    def _send(self, run: Run, row: Row) -> None:
        """Send a row, unless an earlier process has: a resumed run repeats some steps."""
        if self.off or self.world.rank > 0:
            return
        if self.file is None:  # not at the start of the training: the folder is not locked yet
            file = run.folder / f"tracker-{self.name}.json"
            about = _read(run.folder / "config.json")
            self.kept = _read(file)
            self.open(run.folder.absolute(), self.kept, about)
            self.file = FileIO(file, "w")
            self._keep(self.file)
        sent = self.kept.setdefault("sent", {})
        if row.step > sent.get(row.split, -1):
            sent[row.split] = row.step
            self._keep(self.file)  # first: after a kill, a row is rather missing than there twice
            self.send(row)

    def _keep(self, file: FileIO) -> None:
        content = json.dumps(self.kept)
        file.seek(0)
        file.write(content.encode())  # at once, so that a kill cannot cut it; it never gets shorter

    @contextmanager
    def _safely(self) -> Iterator[None]:
        """Switch the tracker off after an error, with one line."""
        try:
            yield
        except Exception as error:
            if not self.off and self.world.rank == 0:
                text = str(error).strip() or type(error).__name__
                reason = text.splitlines()[0][:200]
                print(
                    f"warning: {self.name} failed and is off until the end of this run: {reason}",
                    file=sys.stderr,
                )
            self.off = True


def _add_tracked(row: Row, model: nn.Module) -> None:
    """Add what the model's method `tracked` returns; its mode and the random numbers stay."""
    tracked = getattr(model, "tracked", None)
    if tracked is None:
        return
    model.eval()
    try:
        # a GPU's generator is seeded for each batch
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for name, value in tracked().items():
                _add(row, name, value.to("cpu", copy=True))
    finally:
        model.train()


def _add(row: Row, name: str, value: Tensor) -> None:
    """Add a tensor to the images, histograms or scalars of a row."""
    shape = tuple(value.shape)
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)
    if is_image and value.dtype == torch.uint8:
        row.images[name] = value
    elif len(shape) == 1 and len(value):
        row.histograms[name] = value.float()
    elif not shape:
        row.scalars[name] = value.item()
    else:
        raise ValueError(
            f"tracked() of the model returns {name} of shape {shape} and {value.dtype}"
        )


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a JSON file; nothing if it is missing or damaged."""
    with suppress(OSError, ValueError):
        return dict(json.loads(file.read_text(encoding="utf-8")))
    return {}
