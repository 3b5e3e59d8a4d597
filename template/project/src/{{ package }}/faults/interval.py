"""What a checkpoint between two rows of metrics has besides: of a run that was stopped there, or by the clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..distributed import World
from ..hooks import Hook
from ..metrics import Meter

NAMES = ("row", "buffers")
"""Of its parts in a checkpoint."""


def state(meter: Meter, model: nn.Module, hooks: Sequence[Hook], world: World) -> dict[str, Any]:
    """Return the sums of metrics since the last row, and the buffers of each rank, such as BatchNorm's statistics.

    A validation makes the buffers equal, which an uninterrupted run does not do here. All ranks must call it.
    """
    found: dict[str, Any] = {"row": meter.state_dict()}
    own = {name: value.cpu() for name, value in _of_rank(model, hooks).items()}
    if world.world_size > 1 and own:
        buffers: list[Any] = [None] * world.world_size
        dist.all_gather_object(buffers, own)
        found["buffers"] = buffers
    return found


@torch.no_grad()
def restore(state: Mapping[str, Any], meter: Meter, model: nn.Module, hooks: Sequence[Hook], world: World) -> None:
    """Restore what a checkpoint has of it; the buffers if the run had as many ranks.

    Raises:
        UserError: they have another structure.
    """
    if not set(NAMES) & state.keys():
        return
    from ..resume import same_structure

    with same_structure("the checkpoint"):
        meter.load_state_dict(state.get("row", {}))
        buffers = state.get("buffers", ())
        if len(buffers) == world.world_size:
            for name, value in _of_rank(model, hooks).items():
                value.copy_(buffers[world.rank][name])


def _of_rank(model: nn.Module, hooks: Sequence[Hook]) -> dict[str, Tensor]:
    kept = model.state_dict().keys()
    found = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    for hook in hooks:
        found |= hook.rank_state()
    return found
