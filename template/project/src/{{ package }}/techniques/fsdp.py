"""FSDP2, weights, gradients and optimizer state sharded over the ranks: `dist.strategy=fsdp`.

Zhao et al. 2023 (arXiv:2304.11277), as in `fully_shard`: each weight is sharded along its first dimension. The whole
model is in the memory of rank 0's CPU at the start, and never on a device.
"""

import math
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from .. import checkpoint
from ..config import Config
from ..contracts import blocks_of
from ..distributed import GradientSync, World
from ..errors import UserError
from ..faults import saving


def shard(model: nn.Module, initial: nn.Module, cfg: Config, bf16: bool, world: World) -> None:
    """Shard the model, which is on the meta device, block by block, and give it rank 0's `initial` values.

    With `bf16`, weights are all-gathered in bf16 and gradients reduced in fp32. A model with BatchNorm, which takes no
    bf16 weights, keeps fp32 weights under autocast.

    Raises:
        UserError: there is one rank, or another option needs the whole model on each.
    """
    if world.world_size == 1:
        cfg.dist.refuse("strategy", "it shards the model over ranks, and this run has one; start more, or use ddp")
    if cfg.dist.static_graph or cfg.dist.bf16_gradients:
        cfg.dist.refuse("strategy", "dist.static_graph and dist.bf16_gradients need ddp; set them to false, or use ddp")
    if cfg.optim.name not in ("adamw", "adam", "sgd"):
        cfg.dist.refuse("strategy", f"optim.name={cfg.optim.name} needs whole matrices; use adamw, adam or sgd, or ddp")
    if cfg.optim.name == "sgd" and cfg.optim.fused:
        cfg.optim.refuse("fused", "torch has no fused sgd for dist.strategy=fsdp; set it to false")
    if cfg.speed.compile == "model":
        cfg.dist.refuse("strategy", "weights are gathered block by block; use speed.compile=blocks")
    channels_last = cfg.speed.channels_last is True or (
        cfg.speed.channels_last == "auto" and world.device.type == "cuda"
    )
    if channels_last and any(parameter.ndim == 4 for parameter in model.parameters()):
        cfg.dist.refuse(
            "strategy", "it supports no channels-last weights; set speed.channels_last to false, or use ddp"
        )
    # Collected before `fully_shard` replaces them: on other ranks, both models are one.
    values = {**dict(initial.named_parameters()), **dict(initial.named_buffers())}
    bf16 = bf16 and not any(isinstance(part, _BatchNorm) for part in model.modules())
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # targets keep their digits; autocast casts what matrix products read
    )
    mesh = init_device_mesh(world.device.type, (world.world_size,))
    for part in [*blocks_of(model), model]:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    model.to_empty(device=world.device)
    _fill(model, values, world)


@torch.no_grad()
def _fill(model: nn.Module, values: dict[str, Tensor], world: World) -> None:
    """Copy rank 0's values into the model, through the device at most one rank's rows of one weight at a time."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if not isinstance(value, DTensor):
            value.copy_(_from_rank_0(values[name], world))
            continue
        for rank in range(world.world_size):
            rows = _from_rank_0(values[name][_rows(value, rank, world.world_size)], world)
            if rank == world.rank:
                value.to_local().copy_(rows)


def copy_rows(weight: Tensor, value: Tensor) -> None:
    """Copy this rank's rows of a whole value into its shard of a weight."""
    assert isinstance(weight, DTensor)
    rows = _rows(weight, weight.device_mesh.get_local_rank(), weight.device_mesh.size())
    weight.to_local().copy_(value[rows])


def _from_rank_0(value: Tensor, world: World) -> Tensor:
    on_device = torch.empty(value.shape, dtype=value.dtype, device=world.device)
    sent = on_device.copy_(value) if world.is_main else on_device
    dist.broadcast(sent, src=0)
    return sent


def _rows(weight: Tensor, rank: int, ranks: int) -> slice:
    """Return which rows of a weight are in a rank's shard."""
    count = math.ceil(len(weight) / ranks)
    return slice(rank * count, (rank + 1) * count)


def gradient_sync(net: nn.Module) -> GradientSync:
    """Return what sets whether the backward pass in its context reduces the gradients."""
    assert isinstance(net, FSDPModule)

    def context(synchronize: bool) -> AbstractContextManager[None]:
        net.set_requires_gradient_sync(synchronize)
        return nullcontext()

    return context


def find_checkpoint(path: Path, world: World) -> str:
    """Return on rank 0 the newest good checkpoint, empty if there is none. Each rank checks some files of each.

    Raises:
        UserError: a checkpoint of rank 0 is not on this machine.
    """
    if world.is_main:
        found = checkpoint.find(path, lambda candidate: _damage(world.broadcast(str(candidate)), world))
        world.broadcast("")  # the end
        return str(found or "")
    while candidate := world.broadcast(""):
        _damage(candidate, world)
    return ""


def _damage(candidate: str, world: World) -> str | None:
    if not Path(candidate).exists():
        raise UserError(f"rank 0 found {candidate}, which is not on this machine: share run.dir between the machines")
    problems: list[str | None] = [None] * world.world_size
    dist.all_gather_object(problems, checkpoint.damage(Path(candidate), world.rank, world.world_size))
    return next(filter(None, problems), None)


def read_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Load a checkpoint of any number of ranks; of what is sharded here, this rank's rows only."""
    state = checkpoint.read_state(path, merge=list, mmap=True)  # nothing is read from the disk yet
    live = model.state_dict()
    for key in ("model", "ema"):
        if key in state:
            state[key] = {name: _own(value, live.get(name)) for name, value in state[key].items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in state["optimizer"]["state"].items():
        state["optimizer"]["state"][index] = {key: _own(value, parameters[index]) for key, value in values.items()}
    return state


def _own(value: Any, like: Tensor | None) -> Any:
    """Copy this rank's rows of a tensor or a list of its shards, or the whole if it is not sharded here."""
    shards = value if isinstance(value, list) else [value]
    if not all(isinstance(shard, Tensor) for shard in shards):
        return value
    if shards[0].ndim == 0:
        return value.clone()
    shape = (sum(map(len, shards)), *shards[0].shape[1:])
    if not isinstance(like, DTensor) or like.shape != shape:
        return torch.cat(shards)
    rows = _rows(like, like.device_mesh.get_local_rank(), like.device_mesh.size())
    own, start = [], 0
    for shard in shards:
        own.append(shard[max(rows.start - start, 0) : max(rows.stop - start, 0)])
        start += len(shard)
    local = torch.cat(own).to(like.device)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


class Shards:
    """The shards of each rank, which it writes to a file of its own, in a thread or not."""

    def __init__(self, world: World, threaded: bool) -> None:
        """All ranks must call it."""
        self.world = world
        # With a group of its own, as the collectives of a group must have the same order on all ranks.
        self.group = dist.new_group(backend="gloo") if threaded else None

    def split(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[Any, Tensor]]:
        """Return the state without the shards of this rank, and these, by their place in it."""
        shards: dict[tuple[Any, ...], Tensor] = {}
        return _extract(state, shards, ()), shards

    def write(self, shards: dict[Any, Tensor], folder: Path, pace: saving.Pace | None) -> dict[str, Any]:
        """Write them to `share-<rank>.pt` in a new folder, as `checkpoint.read_state` loads them.

        All ranks must call it. Returns what `saving.write` does for each file.

        Raises:
            UserError: on every rank, if one of them could not write.
        """
        problem, own = "", {}
        try:
            if self.world.is_main:
                saving.make_empty(folder)
        except OSError as error:
            problem = str(error)
        self._gather(problem, {}, folder)
        file = folder / f"share-{self.world.rank:05d}.pt"
        try:
            own = {file.name: saving.write(file, shards, pace)}
        except FileNotFoundError:
            problem = "it is not rank 0's folder: share run.dir between the machines"
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            problem = str(error)
        return self._gather(problem, own, folder)

    def _gather(self, problem: str, own: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Wait for all ranks, and return the files of all; raise on all of them if one has a problem."""
        every: list[Any] = [None] * self.world.world_size
        dist.all_gather_object(every, (problem, own), group=self.group)
        problems = [problem for problem, _ in every if problem]
        if problems:
            if self.world.is_main:
                shutil.rmtree(folder, ignore_errors=True)
            raise saving.cannot_save(folder, problems[0])
        return {name: found for _, files in every for name, found in files.items()}


def _extract(tree: Any, shards: dict[tuple[Any, ...], Tensor], path: tuple[Any, ...]) -> Any:
    if isinstance(tree, DTensor):
        shards[path] = tree.to_local()
        return math.nan  # a placeholder, for `checkpoint.read_state`
    if isinstance(tree, dict):
        return {key: _extract(value, shards, (*path, key)) for key, value in tree.items()}
    return tree
