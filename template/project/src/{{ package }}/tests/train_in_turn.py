"""Train several times in one process per rank, as a start takes seconds.

What is refused is written to the run folder's parent, and so is what `observe`, `count` and `buffers` note of a run.
"""

import contextlib
import gc
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import checkpoint, config, distributed, errors, grad_scaler, loaders, speed, techniques
from ..faults import saving
from ..train import train
from .faulty import Faulty, install


def overflow(self: speed.Precision) -> torch.amp.GradScaler:
    """Start with a loss scale that fp16 overflows with, and lower it quickly."""
    if self.format != "fp16":
        return torch.amp.GradScaler("cpu", enabled=False)
    return grad_scaler.CountingScaler(self.device, init_scale=2.0**40, backoff_factor=2.0**-20)


class Largest(TorchDispatchMode):
    """Notes the most elements of a tensor on the CPU that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = operation(*args, **(kwargs or {}))
        for value in tree_leaves(returned):
            if type(value) is torch.Tensor and value.device.type == "cpu":
                self.elements = max(self.elements, value.numel())
        return returned


@contextlib.contextmanager
def observe(cfg: config.Config, world: distributed.World) -> Iterator[None]:
    """Note the largest tensors while the model is built and a checkpoint is read, and the files that are hashed."""
    read_state, build_model, change_model = techniques.read_state, techniques.build_model, techniques.change_model
    fingerprint, write = checkpoint.fingerprint, saving.write

    def note(kind: str, value: object) -> None:
        with (cfg.run.dir / f"{cfg.run.name}-{kind}-{world.rank}").open("a") as file:
            file.write(f"{value}\n")

    def measured(kind: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            with Largest() as largest:  # type: ignore[no-untyped-call]  # torch's
                returned = function(*args)
            note(kind, largest.elements)
            return returned

        return call

    def hashed(file: Path) -> dict[str, str | int]:
        note("hashed", file.name)
        return fingerprint(file)

    def written(file: Path, *arguments: Any) -> dict[str, str | int]:
        note("hashed", file.name)
        return write(file, *arguments)

    changes: dict[str, Any] = {"build_model": measured("built", build_model)}
    changes |= {"change_model": measured("built", change_model), "read_state": measured("read", read_state)}
    files = mock.patch.object(checkpoint, "fingerprint", hashed), mock.patch.object(saving, "write", written)
    with mock.patch.multiple(techniques, **changes), files[0], files[1]:
        yield


@contextlib.contextmanager
def count(cfg: config.Config, world: distributed.World) -> Iterator[None]:
    """Note how many times DDP reduces a bucket of gradients."""
    reductions = 0
    change_reduction = techniques.compress_gradients

    def reduce(group: Any, bucket: Any) -> Future[Tensor]:
        nonlocal reductions
        reductions += 1
        return allreduce_hook(group, bucket)

    def register(net: Any, *others: Any) -> None:
        change_reduction(net, *others)
        net.register_comm_hook(None, lambda group, bucket: reduce(group, bucket))  # DDP checks annotations

    with mock.patch.object(techniques, "compress_gradients", register):
        yield
    (cfg.run.dir / f"{cfg.run.name}-reductions-{world.rank}").write_text(str(reductions))


def save_buffers(world: distributed.World, file: Path) -> None:
    """Save the buffers of a network that has seen other batches on each rank: before they are made equal, and after."""
    torch.manual_seed(world.rank)
    net = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False, track_running_stats=False))
    net.register_buffer("rank", torch.tensor(world.rank))
    net(torch.randn(8, 4) * (1 + world.rank) + 3 * world.rank)
    states = [dict(net.state_dict())]
    for _ in range(2):
        states[-1] = {name: value.clone() for name, value in states[-1].items()}
        techniques.sync_buffers(net, world)
        states.append(dict(net.state_dict()))
    torch.save(states, file)


def _install(changes: tuple[str, ...]) -> None:
    """Let runs have a `phased` network; or one that fails at a micro-batch, `nan:<seed>`, or `memory:<seed>`."""
    if "phased" in changes:
        from . import phased

        phased.install()
    failing = Faulty()
    for change in changes:
        kind, _, seed = change.partition(":")
        if kind == "nan":
            failing.factors[int(seed)] = math.nan
        if kind == "memory":
            failing.most[int(seed)] = 2
    if failing.factors or failing.most:
        install(failing)


def main(rank: int, ranks: int, port: int, runs: list[config.Config], validated: int, changes: tuple[str, ...]) -> None:
    """Train with each config in turn, as torchrun would start this rank.

    A validation has `validated` micro-batches at most, over all ranks.
    """
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Grad strides do not match")  # both strides of a 1 x 1 convolution are right
    order = loaders.EvalOrder

    def short(samples: int, micro_batch: int, *place: int) -> loaders.EvalOrder:
        return order(9 if "nine_samples" in changes else min(samples, validated * micro_batch), micro_batch, *place)

    loaders.EvalOrder = short  # type: ignore[assignment,misc]
    if "overflow" in changes:
        speed.Precision.scaler = overflow  # type: ignore[method-assign]
    if "two_cores" in changes:
        os.sched_getaffinity = lambda _: {0, 1}
    gc.collect = lambda generation=2: 0  # as in conftest.py
    _install(changes)
    with distributed.start("cpu") as world:
        for cfg in runs:
            if f"buffers:{cfg.run.name}" in changes:
                save_buffers(world, cfg.run.dir / f"buffers-{rank}.pt")
            try:
                with contextlib.ExitStack() as noted:
                    for change in (count, observe):
                        if f"{change.__name__}:{cfg.run.name}" in changes:
                            noted.enter_context(change(cfg, world))
                    train(cfg, world)
            except errors.UserError as error:
                (cfg.run.dir / f"{cfg.run.name}-refused-{world.rank}").write_text(str(error))
    distributed.end(world)
