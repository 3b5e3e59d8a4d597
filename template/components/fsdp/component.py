"""FSDP2: weights, gradients and optimizer state sharded over the ranks, in checkpoints as well."""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..checkpoint import Checkpoints, save
from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
from ..contracts import blocks
from ..distributed import Parallel, World
from ..errors import UserError
from ..loader import map_tensors
from ..run import Run


@dataclass(frozen=True)
class FsdpConfig(Section):
    """Fully sharded data parallel, Zhao et al. 2023 (arXiv:2304.11277)."""

    enabled: bool = False
    """Shard the model over the ranks, instead of one copy on each."""
    bf16: bool = False
    """All-gather weights in bf16, and reduce gradients in fp32; not for models with BatchNorm."""


class Fsdp(Component):
    """Shards each of the model's `blocks`, and the rest."""

    name = "fsdp"

    def __init__(self, cfg: FsdpConfig, world: World) -> None:
        self.cfg = cfg
        self.world = world

    def check(
        self,
        cfg: BaseConfig,
        enabled: Collection[str],
    ) -> None:
        if self.world.size == 1:
            start = "start with torchrun --nproc-per-node 2"
            raise UserError(f"fsdp.enabled needs several ranks: {start}")

    def parallelize(
        self,
        model: nn.Module,
        cfg: BaseConfig,
        world: World,
    ) -> Parallel:
        """Shard the model of the CPU; one block at a time is whole on the device."""
        # here, as these imports take a second
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(self.world.device.type, (self.world.size,))
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if self.cfg.bf16 else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for module in [*blocks(model), model]:
            fully_shard(module, mesh=mesh, mp_policy=policy)
        return Parallel(model, partial(_no_sync, model))

    @contextmanager
    def eval_weights(self, run: Run) -> Iterator[None]:
        """Gather the root's weights anew after a validation, which may have had others."""
        yield
        sharded: Any = run.model
        sharded.reshard()

    def checkpointer(self, run: Run) -> "ShardedCheckpoints":
        return ShardedCheckpoints(run)


@contextmanager
def _no_sync(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


class ShardedCheckpoints(Checkpoints):
    """Checkpoints in shards, one per rank, and the whole weights; any ranks can load them.

    The metadata of torch.distributed.checkpoint is a pickle: resume only from checkpoints that you
    trust.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run.folder, run.cfg.run.keep, run.world)
        self.run = run

    def write(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the shards and the whole weights."""
        from torch.distributed.checkpoint import state_dict_saver
        from torch.distributed.checkpoint.api import CheckpointException

        for buffer in self.run.model.buffers():  # such as BatchNorm's running statistics
            dist.broadcast(buffer, src=0)
        self.world.run_on_rank_zero(lambda: shutil.rmtree(folder, ignore_errors=True))
        shards = _without_spec(state) | self._shards()
        try:
            state_dict_saver.save(shards, checkpoint_id=folder)
        except CheckpointException as error:  # its lines are those of all ranks
            reason = str(error).strip().splitlines()[-1]
            raise UserError(f"cannot write {folder}: {reason}") from None
        parts = {name: state[name] for name in ("model", "components")}
        weights = map_tensors(_whole, parts) | {"spec": state["spec"]}
        self.world.run_on_rank_zero(lambda: save(weights, folder / "weights.pt"))

    def read(
        self,
        folder: Path,
        state: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the state with this rank's shards."""
        from torch.distributed.checkpoint import state_dict_loader
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        if not (folder / ".metadata").exists():
            other = "use another run.name, or fsdp.enabled=false"
            raise UserError(f"{folder} was saved without fsdp: {other}")
        loaded = _without_spec(state) | self._shards()
        try:
            state_dict_loader.load(loaded, checkpoint_id=folder)
        except CheckpointException as error:  # its lines are those of all ranks
            reason = str(error).strip().splitlines()[-1]
            other = "put the model and the data of the run back, or use another run.name"
            raise UserError(f"{folder} does not fit this model ({reason}): {other}") from None
        set_optimizer_state_dict(self.run.model, self.run.optimizer, loaded["optimizer"])
        return loaded | {"optimizer": self.run.optimizer.state_dict()}

    def _shards(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.run.model, self.run.optimizer)
        return {"model": model, "optimizer": optimizer}


def _without_spec(state: dict[str, Any]) -> dict[str, Any]:
    """Leave out the Spec, which is in `weights.pt` and read before there is a model."""
    return {name: value for name, value in state.items() if name != "spec"}


def _whole(value: Tensor) -> Tensor:
    """Gather a sharded tensor; every rank must call it."""
    found: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found.cpu()
