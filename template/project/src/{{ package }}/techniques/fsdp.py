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
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..config import Config
from ..contracts import blocks_of
from ..distributed import GradientSync, World
from ..errors import UserError


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
    if cfg.optim.name not in ("adamw", "sgd"):
        cfg.dist.refuse("strategy", f"optim.name={cfg.optim.name} needs whole matrices; use adamw or sgd, or ddp")
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


def _from_rank_0(value: Tensor, world: World) -> Tensor:
    sent = value.to(world.device) if world.is_main else torch.empty_like(value, device=world.device)
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


def shard_state(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Shard the whole tensors of a checkpoint's state as the live model's are, into DTensors."""
    live = model.state_dict()
    sharded = {**state, "model": {name: _as(value, live.get(name)) for name, value in state["model"].items()}}
    if "ema" in state:
        sharded["ema"] = {name: _as(value, live.get(name)) for name, value in state["ema"].items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        index: {key: _as(value, parameters[index]) for key, value in values.items()}
        for index, values in state["optimizer"]["state"].items()
    }
    return {**sharded, "optimizer": {**state["optimizer"], "state": moments}}


def _as(value: Any, like: Tensor | None) -> Any:
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def write_shards(folder: Path, state: dict[str, Any], world: World) -> dict[str, Any]:
    """Write this rank's shards to `share-<rank>.pt` in a new folder, and return the state without them.

    All ranks must call it. `checkpoint.read_state` merges the shards, in any number of processes.

    Raises:
        UserError: on every rank, if one of them could not write.
    """
    shards: dict[tuple[Any, ...], Tensor] = {}
    rest = _extract(state, shards, ())
    problem = ""
    if world.is_main:
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            problem = str(error)
    _check_all(problem, folder, world)
    try:
        with (folder / f"share-{world.rank:05d}.pt").open("wb") as file:
            torch.save(shards, file)
    except FileNotFoundError:
        problem = "it is not rank 0's folder: share run.dir between the machines"
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        problem = str(error)
    _check_all(problem, folder, world)
    return dict(rest)


def _check_all(problem: str, folder: Path, world: World) -> None:
    """Wait for all ranks, and raise on all of them if one has a problem."""
    failed = world.all_reduce(torch.tensor([float(bool(problem))], device=world.device)).item()
    if failed:
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)
        why = problem or "another rank failed"
        raise UserError(f"cannot save {folder} ({why}): free some space; older checkpoints are untouched")


def _extract(tree: Any, shards: dict[tuple[Any, ...], Tensor], path: tuple[Any, ...]) -> Any:
    if isinstance(tree, DTensor):
        shards[path] = tree.to_local()
        return math.nan  # a placeholder, for `checkpoint.read_state`
    if isinstance(tree, dict):
        return {key: _extract(value, shards, (*path, key)) for key, value in tree.items()}
    return tree
