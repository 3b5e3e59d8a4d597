"""What keeps a run alive, or ends it so that it can be continued: one module per fault."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import run_of
from ..config import Config
from ..contracts import Batch, Metrics
from ..distributed import World
from ..errors import UserError
from ..hooks import Hook
from ..model import build

ForwardBackward = Callable[[Batch, float, bool], Metrics]
"""Adds the gradient of a prepared batch, its loss divided by a number; with True, reduced over the ranks."""
StepCheck = Callable[[Sequence[Tensor]], bool]


def compute_within_memory(forward_backward: ForwardBackward, run: Any) -> Callable[[Batch, bool], None]:
    """Return what prepares a micro-batch, adds its gradient, and its metrics to the meter of `run`, a `run.Run`.

    When memory runs out, this rank makes the step again with forward passes of half as many samples, and all others.
    """
    parts, progress = run.parts, run.progress

    def compute_grads(batch: Batch, last: bool) -> None:
        again: Batch | None = batch
        if progress.forward_batch is None:
            try:
                whole = forward_backward(parts.prepare(batch, True, run.generator), parts.plan.accumulate, last)
                run.meter.add(whole)
                return
            except (RuntimeError, MemoryError) as error:
                from . import memory

                memory.halve(error, run, last)
            again = None  # not in the handler, whose error keeps the tensors of the failed step
        from . import memory

        memory.compute_in_chunks(forward_backward, run, again, last)

    return compute_grads


def restart_if_out_of_memory(error: BaseException, parts: Any, progress: Any, folder: Path) -> None:
    """End a run, out of memory where it cannot go on in this process, so that it can be resumed in another.

    Raises:
        RestartError: its folder has the smaller micro-batch to resume it with.
        UserError: it cannot be resumed so.
    """
    from . import memory

    memory.restart(error, parts.cfg, parts.plan, progress, folder)


def smaller_batches(cfg: Config, world: World) -> Config:
    """Return the config with the micro-batch that a run to resume was left with when memory ran out."""
    if not cfg.run.name and not cfg.run.resume:
        return cfg
    named = cfg.run.dir / str(cfg.run.name)
    folder = named if cfg.run.resume in (None, "auto") else run_of(Path(cfg.run.resume))
    if world.world_size == 1 and (folder is None or not folder.is_dir()):
        return cfg
    from . import memory

    return memory.smaller_batches(cfg, folder, world)


def agreed_forward_batch(size: int | None, world: World) -> int | None:
    """Return the smallest size of a forward pass on any rank, None for whole micro-batches. All ranks must call it."""
    if world.world_size == 1:
        return size
    from . import memory

    return memory.agreed(size, world)


def _checks_steps(cfg: Config) -> bool:
    return cfg.train.on_nonfinite != "stop" or cfg.train.spike_factor is not None


def hooks(cfg: Config) -> list[Hook]:
    """`train.on_nonfinite` and `train.spike_factor`: the check of each step.

    Raises:
        UserError: an option conflicts with it.
    """
    if not _checks_steps(cfg):
        return []
    from . import nonfinite

    nonfinite.check(cfg)
    return [nonfinite.Guard(cfg)]


def update_if_allowed(update: Callable[[], Tensor], run: Any, parameters: Sequence[Tensor]) -> Callable[[], Tensor]:
    """Return what makes the update of a step, unless it is left out, and returns the gradient norm."""
    allows = step_check(run)
    return (lambda: update() if allows(parameters) else run.grad_norm) if allows else update


def step_check(run: Any) -> StepCheck | None:
    """Return what decides, by the gradients of these parameters, whether to make an update; None: it is always made."""
    if not _checks_steps(run.parts.cfg):
        return None
    from . import nonfinite

    guard = next(hook for hook in run.parts.hooks if isinstance(hook, nonfinite.Guard))
    guard.run = run
    return guard.allows


def check_finite(row: Mapping[str, float], step: int, precision: str, folder: Path) -> None:
    """Stop before a broken state is saved. In fp16 an infinite gradient is expected: that step was skipped.

    Raises:
        UserError: the loss or the gradient norm of a row is not finite.
    """
    broken = [key for key in ("loss", "grad_norm") if not math.isfinite(row[key])]
    if broken and not (broken == ["grad_norm"] and precision == "fp16"):
        from . import diverged

        raise UserError(f"{broken[0]} is {row[broken[0]]} at step {step}: {diverged.way_out(folder, step)}")


def check_state(state: Mapping[str, Any], run: Any) -> None:
    """Refuse to save the state of a run that has diverged. All ranks must call it.

    Raises:
        UserError: says how, and what to do.
    """
    from . import diverged

    diverged.check_loss(run.results, run.progress, run.folder)
    parts = run.parts

    def initial() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            return build(parts.cfg.model, parts.data.spec)

    diverged.check(parts.model, state, initial, run.folder, parts.world)
