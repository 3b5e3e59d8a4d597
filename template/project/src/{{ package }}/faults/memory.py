"""Out of memory: smaller forward passes with the same global batch, in this process or after a restart."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from ..config import Config
from ..contracts import Batch, Metrics, map_tensors, size_of
from ..distributed import World
from ..errors import RestartError, UserError
from ..loaders import Plan

ForwardBackward = Callable[[Batch, float, bool], Metrics]
"""Adds the gradient of a prepared batch, as in `compute_within_memory`."""
RECORD = "out_of_memory.json"
"""File in a run's folder: the micro-batch, in samples, that its next process has at most."""
SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "STATUS_ALLOC_FAILED")
"""What the messages of allocators have that raise a plain RuntimeError."""
NONE = 2**31


class UndividedError(MemoryError):
    """Memory ran out, and a batch cannot be divided, as not all of its tensors have a sample in each row."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is of an allocation, on the device or the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def compute_in_chunks(forward_backward: ForwardBackward, run: Any, batch: Batch | None, last: bool) -> None:
    """Add the gradient of a micro-batch, `run.progress.forward_batch` samples at a time.

    Without `batch`, the step is made again from its first micro-batch to the present one.

    Raises:
        UserError: the memory is not enough for one sample.
    """
    begun = run.micro_step
    while not _compute(forward_backward, run, batch, begun, last):
        batch = None


def _compute(forward_backward: ForwardBackward, run: Any, batch: Batch | None, begun: int, last: bool) -> bool:
    """Return whether the memory was enough. If not, the tensors of this call are free when it has returned."""
    metrics: list[Metrics] = []
    try:
        if batch is None:
            _rewind(run)
            for micro in range(1, begun + 1):  # the metrics of all but the last were added before
                again = run.fetch()
                run.seed_batch()
                metrics = _add_gradient(forward_backward, run, again, last and micro == begun)
        else:
            metrics = _add_gradient(forward_backward, run, batch, last)
    except (RuntimeError, MemoryError) as error:
        halve(error, run, last)
        return False
    for found in metrics:
        run.meter.add(found)
    return True


def _rewind(run: Any) -> None:
    """Go back to the start of the step."""
    for parameter in run.parts.model.parameters():
        parameter.grad = None
    if run.parts.world.device.type != "cpu":
        torch.accelerator.empty_cache()  # blocks of the former sizes
    run.order.first_step, run.micro_step = run.progress.step, 0
    run.train_batches = iter(run.train_loader)


def _add_gradient(forward_backward: ForwardBackward, run: Any, batch: Batch, last: bool) -> list[Metrics]:
    parts = run.parts
    prepared: Batch = parts.prepare(batch, True, run.generator)  # whole, so that augmentation draws the same numbers
    size, most, found = parts.plan.micro_batch, run.progress.forward_batch, []
    if size_of(prepared) != size:
        run.progress.forward_batch = None
        raise UndividedError
    for begin in range(0, size, most):
        chosen = slice(begin, begin + most)
        divisor = parts.plan.accumulate * size / len(range(size)[chosen])
        chunk = map_tensors(itemgetter(chosen), prepared)
        found.append(forward_backward(chunk, divisor, last and begin + most >= size))
    return found


def halve(error: BaseException, run: Any, last: bool) -> None:
    """Halve the forward passes of this rank from here on, after an error.

    It is raised again if it is another one, or the step cannot be made again in this process: see `restart`.

    Raises:
        UserError: there is one sample in a forward pass already.
    """
    if (
        isinstance(error, UndividedError)
        or not is_out_of_memory(error)
        or _is_bound(error, run.parts.cfg, run.parts.world, last)
    ):
        raise error
    progress, world = run.progress, run.parts.world
    size = progress.forward_batch or run.parts.plan.micro_batch
    if size == 1:
        raise _too_large(progress.step, run.parts.cfg) from None
    progress.forward_batch = math.ceil(size / 2)
    who = f"rank {world.rank}: " if world.world_size > 1 else ""
    count = f"{progress.forward_batch} sample{'s' * (progress.forward_batch > 1)}"
    what = f"forward passes have {count} from here on, with the same global batch"
    print(f"{who}out of memory in step {progress.step + 1}: {what}", file=sys.stderr, flush=True)


def _is_bound(error: BaseException, cfg: Config, world: World, last: bool) -> bool:
    """Whether other ranks wait for what has failed, or CUDA graphs hold the memory of the failed step."""
    captures = cfg.speed.compile != "off" and cfg.speed.compile_mode in ("reduce-overhead", "max-autotune")
    if cfg.speed.step_graph or (captures and world.device.type == "cuda"):
        return True
    if world.world_size == 1:
        return False
    if cfg.dist.strategy == "fsdp" or cfg.dist.sync_batchnorm or cfg.dist.static_graph:
        return True
    return last and any(it.f_code.co_name == "backward" for it in _frames(error, "torch.autograd"))


def _frames(error: BaseException, *modules: str) -> Iterator[FrameType]:
    """Return the calls that an error went through in modules of torch, from the outermost."""
    place = error.__traceback__
    while place is not None:
        name = str(place.tb_frame.f_globals.get("__name__", ""))
        if f"{name}.".startswith(tuple(f"{module}." for module in modules)):
            yield place.tb_frame
        place = place.tb_next


def _in_optimizer(error: BaseException) -> bool:
    """Whether the optimizer needed the memory, and not a pass through the model: Lightning's steps call that."""
    names = [str(it.f_globals["__name__"]) for it in _frames(error, "torch.optim", "torch.nn", "torch.autograd")]
    return bool(names) and names[-1].startswith("torch.optim")


def _too_large(step: int, cfg: Config) -> UserError:
    ways = {
        "speed.precision=bf16": cfg.speed.precision in ("fp32", "tf32", "auto"),
        "speed.activation_checkpointing=blocks": cfg.speed.activation_checkpointing == "none",
        "dist.strategy=fsdp": cfg.dist.strategy == "ddp",
    }
    way = ", ".join(option for option, off in ways.items() if off)
    return UserError(f"out of memory in step {step + 1} with one sample per forward pass: use {way} or a smaller model")


def restart(error: BaseException, cfg: Config, plan: Plan, progress: Any, folder: Path) -> None:
    """End this process so that a new one resumes the run with smaller micro-batches; return if it is another error.

    Raises:
        RestartError: the run's folder has the new size.
        UserError: the run cannot be resumed so.
    """
    if not is_out_of_memory(error):
        return
    if _in_optimizer(error):
        way = "use dist.strategy=fsdp, optim.name=sgd or a smaller model"
        raise UserError(f"out of memory in the optimizer, whatever train.micro_batch is: {way}") from error
    if cfg.dist.static_graph:
        cfg.dist.refuse("static_graph", "out of memory, and it allows no smaller micro-batches; set it to false")
    size = min(progress.forward_batch or plan.micro_batch, plan.micro_batch)
    if size == 1:
        raise _too_large(progress.step, cfg) from error
    smaller = _fitting(plan.micro_batch, size // 2)
    what, options = f"out of memory in step {progress.step + 1}", f"--train.micro_batch {smaller}"
    written = folder / f".{RECORD}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)  # of another machine
        written.write_text(json.dumps({"micro_batch": smaller}) + "\n", encoding="utf-8")
        written.replace(folder / RECORD)
    except OSError as failed:
        why = f"{what}, and cannot write {folder} ({failed.strerror})"
        raise UserError(f"{why}: resume with {options} --train.global_batch {plan.global_batch}") from error
    how = f"continue with {'' if cfg.run.name else f'--run.name {folder.name} '}--run.resume auto"
    raise RestartError(f"{what}; {how}, in micro-batches of {smaller} samples and the same global batch") from error


def _fitting(micro_batch: int, limit: int) -> int:
    """Return the largest divisor of a micro-batch that is at most `limit`."""
    return next(size for size in range(min(limit, micro_batch), 0, -1) if micro_batch % size == 0)


def smaller_batches(cfg: Config, folder: Path | None, world: World) -> Config:
    """Return the config with the micro-batch that the run's folder has since `restart`, and the same global batch.

    All ranks must call it; the folder may be on the disk of some only.
    """
    limit = agreed(_read(folder / RECORD) if folder else None, world)
    train = cfg.train
    if limit is None or limit >= train.micro_batch:
        return cfg
    total = train.global_batch or train.micro_batch * train.accumulate * world.world_size
    smaller = replace(train, micro_batch=_fitting(train.micro_batch, limit), accumulate=1, global_batch=total)
    return replace(cfg, train=smaller)


def _read(file: Path) -> int | None:
    try:
        size = json.loads(file.read_text(encoding="utf-8"))["micro_batch"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return size if isinstance(size, int) and size > 0 else None


def agreed(size: int | None, world: World) -> int | None:
    """Return the smallest size of all ranks that have one. All ranks must call it."""
    if world.world_size == 1:
        return size
    smallest = torch.tensor(size or NONE, device=world.device)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return None if smallest.item() == NONE else int(smallest)
