"""Out of memory: smaller forward passes and the same global batch; on several ranks, a restart."""

import gc
import json
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..component import Component, Step
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import Metrics
from ..distributed import World, seed_batch
from ..errors import UserError
from ..loader import map_tensors
from ..run import Run
from ..summary import write_text

FILE = "oom.json"
"""File in a run's folder: the samples per forward pass of the next start."""
MicroBatch = tuple[Any, bool, bool]
"""The arguments of `compute_gradients`."""


@dataclass(frozen=True)
class OomConfig(Section):
    """Smaller forward passes when the device runs out of memory."""

    enabled: bool = False
    """Halve the forward passes until they fit; the global batch stays the same."""
    smallest: int = within("[1, inf)", 1)
    """Samples of the smallest forward pass to try."""


class Oom(Component):
    """Halves the forward passes of each micro-batch.

    A model with BatchNorm normalizes over the smaller ones.
    """

    name = "oom"

    def __init__(
        self,
        cfg: OomConfig,
        world: World,
    ) -> None:
        self.smallest = cfg.smallest
        self.size = 0
        """Samples per forward pass; 0 until memory has run out."""
        self.micro_batches: list[MicroBatch] = []
        """Those of the present step, which starts again after an error."""

    def check(
        self,
        cfg: BaseConfig,
        enabled: Collection[str],
    ) -> None:
        if cfg.speed.has_cuda_graphs:
            why = "its CUDA graphs overwrite gradients that are kept"
            other = "use default or max-autotune-no-cudagraphs, or oom.enabled=false"
            cfg.speed.refuse("compile_mode", f"{why}: {other}")

    def convert_model(self, model: nn.Module) -> nn.Module:
        if getattr(model, "batch_coupled", False):
            changed = f"oom.enabled would change the loss of {type(model).__name__}"
            raise UserError(f"{changed}, which compares the samples of a batch")
        return model

    def on_train_start(self, run: Run) -> None:
        file = run.folder / FILE
        self.size = int(run.world.broadcast(file.read_text("utf-8") if file.exists() else "0"))

    def wrap_step(
        self,
        run: Run,
        step: Step,
    ) -> Step:
        def in_chunks(micro: int) -> Metrics:
            batch, is_first, is_last = self.micro_batches[micro]
            if self.size == 0:
                return step.compute_gradients(batch, is_first, is_last)
            # a resumed run has made no failed attempt
            seed_batch(run.world, run.cfg.run.seed, run.step, micro)
            count = run.plan.batch_size
            total: dict[str, tuple[Any, ...]] = {}
            for begin in range(0, count, self.size):
                end = min(begin + self.size, count)
                chunk = map_tensors(partial(_rows, begin, end, count), batch)
                metrics = step.compute_gradients(
                    chunk, is_first and begin == 0, is_last and end == count
                )
                for name, (sums, counts) in metrics.items():
                    before = total.get(name, (0, 0))
                    total[name] = (before[0] + sums, before[1] + counts)
            return total

        def compute_gradients(
            batch: Any,
            is_first: bool,
            is_last: bool,
        ) -> Metrics:
            self.micro_batches.append((batch, is_first, is_last))
            first = len(self.micro_batches) - 1
            while True:
                try:
                    for micro in range(first, len(self.micro_batches)):
                        metrics = in_chunks(micro)
                    if is_last:
                        self.micro_batches = []
                    return metrics
                except torch.OutOfMemoryError:
                    self._halve(run)
                first = 0  # the gradients of the whole step are computed again
                run.optimizer.zero_grad(set_to_none=True)
                gc.collect()

        return step._replace(compute_gradients=compute_gradients)

    def _halve(self, run: Run) -> None:
        before = self.size or run.plan.batch_size
        size = before // 2
        if size < self.smallest:
            raise UserError(f"out of memory with {before} samples: use a smaller model")
        if run.world.size == 1:
            self.size = size
            message = f"out of memory at step {run.step}: forward passes of {size} samples"
            print(f"{message} from here on", file=sys.stderr)
            return
        # The others wait for this rank's gradients, so all of them must start again.
        with suppress(FileNotFoundError):  # another rank has just replaced it, with the same number
            write_text(run.folder / FILE, json.dumps(size))
        resume = f"resume with --run.name {run.name}, in forward passes of {size} samples"
        raise UserError(f"out of memory on rank {run.world.rank} at step {run.step}: {resume}")

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
    ) -> None:
        """Take the smaller of the sizes in the checkpoint and in the file, which is newer."""
        saved = state.get("size", 0)
        self.size = min(self.size or saved, saved or self.size)


def _rows(
    begin: int,
    end: int,
    count: int,
    part: Tensor,
) -> Tensor:
    """Return the rows of some samples of a batch of `count`; a number is that of all samples."""
    if part.ndim == 0:
        return part
    if len(part) != count:
        other = f"a tensor of {len(part)} rows in a batch of {count} samples"
        raise UserError(
            f"oom cannot divide {other}: pad it to a row per sample, or set oom.enabled=false"
        )
    return part[begin:end]
