"""Weights, gradients and optimizer state shared out among the ranks: `dist.strategy=fsdp`.

Zhao et al. 2023 (arXiv:2304.11277), as `fully_shard` does it: each weight is cut along its first dimension.
"""

import math
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..config import Config
from ..distributed import World
from ..errors import UserError
from .blocks import blocks_of


def shard(model: nn.Module, cfg: Config, bf16: bool, world: World) -> nn.Module:
    """Share the model out in place, block by block; to be done before the optimizer is made.

    With `bf16`, weights travel in it and gradients are still added up in fp32; but not where there is BatchNorm, which
    takes no weights in bf16: there autocast alone brings the format.

    Raises:
        UserError: there is one rank, or another switch needs the whole model on each.
    """
    if world.world_size == 1:
        cfg.dist.refuse("strategy", "it shares a model out among ranks, and this run has one; start more, or use ddp")
    if cfg.dist.static_graph or cfg.dist.bf16_gradients:
        cfg.dist.refuse("strategy", "dist.static_graph and dist.bf16_gradients are of ddp; switch them off, or use ddp")
    if cfg.optim.name not in ("adamw", "sgd"):
        cfg.dist.refuse("strategy", f"optim.name={cfg.optim.name} needs whole matrices; use adamw or sgd, or ddp")
    if cfg.optim.name == "sgd" and cfg.optim.fused:
        cfg.optim.refuse("fused", "torch has no fused sgd for dist.strategy=fsdp; set it to false")
    if cfg.speed.compile == "model":
        cfg.dist.refuse("strategy", "weights arrive block by block; use speed.compile=blocks")
    if not all(parameter.is_contiguous() for parameter in model.parameters()):
        cfg.dist.refuse("strategy", "it takes no channels-last weights; set speed.channels_last to false, or use ddp")
    bf16 = bf16 and not any(isinstance(part, _BatchNorm) for part in model.modules())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32)
    mesh = init_device_mesh(world.device.type, (world.world_size,))
    for part in [*blocks_of(model), model]:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return model


def share_out(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Turn a checkpoint's whole tensors into what this rank holds of them, as DTensors."""
    live = model.state_dict()
    shared = {**state, "model": {name: _as(value, live.get(name)) for name, value in state["model"].items()}}
    if "ema" in state:
        shared["ema"] = {name: _as(value, live.get(name)) for name, value in state["ema"].items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        index: {key: _as(value, parameters[index]) for key, value in values.items()}
        for index, values in state["optimizer"]["state"].items()
    }
    return {**shared, "optimizer": {**state["optimizer"], "state": moments}}


def _as(value: Any, like: Tensor | None) -> Any:
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def write_shares(folder: Path, state: dict[str, Any], world: World) -> dict[str, Any]:
    """Write this rank's share as `share-<rank>.pt` into a new folder, and return the state without what is shared.

    All ranks must call it; `join` puts the shares together again, in one process or any number.

    Raises:
        UserError: on every rank, if one of them could not write.
    """
    shares: dict[tuple[Any, ...], Tensor] = {}
    rest = _take_out(state, shares, ())
    problem = ""
    if world.is_main:
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            problem = str(error)
    _all_could(problem, folder, world)
    try:
        with (folder / f"share-{world.rank:05d}.pt").open("wb") as file:
            torch.save(shares, file)
    except FileNotFoundError:
        problem = "it is not the main rank's folder: share run.dir between the machines"
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        problem = str(error)
    _all_could(problem, folder, world)
    return dict(rest)


def _all_could(problem: str, folder: Path, world: World) -> None:
    """Wait for all ranks, and end all of them if one has a problem."""
    failed = world.sum(torch.tensor([float(bool(problem))], device=world.device)).item()
    if failed:
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)
        why = problem or "another rank could not"
        raise UserError(f"cannot save {folder} ({why}): free some space; older checkpoints are untouched")


def _take_out(tree: Any, shares: dict[tuple[Any, ...], Tensor], path: tuple[Any, ...]) -> Any:
    if isinstance(tree, DTensor):
        shares[path] = tree.to_local()
        return math.nan  # its place is kept for `join`
    if isinstance(tree, dict):
        return {key: _take_out(value, shares, (*path, key)) for key, value in tree.items()}
    return tree


def join(state: dict[str, Any], shares: list[dict[tuple[Any, ...], Tensor]]) -> dict[str, Any]:
    """Put the ranks' shares back into the state that they were taken from, as whole tensors."""
    for path in shares[0]:
        *parents, last = path
        place = state
        for key in parents:
            place = place[key]
        place[last] = torch.cat([share[path] for share in shares])
    return state
