"""A diverged state is not saved as a good checkpoint: it is not finite, or its weights are beyond all measure."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..checkpoint import all_checkpoints, step_name
from ..console import shown
from ..distributed import World
from ..errors import UserError

LOSS_LIMIT = 1e6
LIMIT = 1e3
"""Root mean square of the weights that is suspicious; initial weights have 1 at most."""


def check(
    model: nn.Module,
    state: Mapping[str, Any],
    build: Callable[[], nn.Module],
    folder: Path,
    world: World,
) -> None:
    """Refuse to save a state that is not finite, or whose weights have grown more than `LIMIT` times.

    `build` makes the model with its initial weights, for models that begin with large ones. All ranks must call it.

    Raises:
        UserError: says which, and what to do.
    """
    every = hasattr(model, "phases")  # of which only the present one requires gradients
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad or every}
    weights = [value for name, value in state["model"].items() if name in trained]
    found = [*weights, *_statistics(model)]
    found += [value for name, value in state.get("ema", {}).items() if name in trained]
    found += _tensors(state["optimizer"])  # of which muon has two
    broken = not all(map(math.isfinite, _norms(found, math.inf)))
    squares = sum(norm**2 for norm in _norms(weights, 2.0))
    size = sum(_local(weight).numel() for weight in weights)
    sums = torch.tensor([float(broken), squares, size], dtype=_precise(world.device), device=world.device)
    broken, squares, size = world.all_reduce(sums).tolist()
    rms = math.sqrt(squares / max(size, 1))
    if broken or not math.isfinite(rms):
        what = "weights, statistics or optimizer state are no longer finite"
    elif rms > LIMIT and rms > LIMIT * _rms(build()):
        what = f"the weights have grown to a root mean square of {rms:.1e}"
    else:
        return
    raise _diverged(what, folder, state["step"])


def check_loss(results: Mapping[str, float], progress: Any, folder: Path) -> None:
    """Refuse to save if the loss of the last validation is `LOSS_LIMIT` times the best one.

    Raises:
        UserError: says so, and what to do.
    """
    loss, best = results.get("loss", 0.0), progress.best
    if best.monitor == "loss" and loss > LOSS_LIMIT * max(1.0, abs(best.value)):
        raise _diverged(f"the validation loss is {loss:.1e}, and was {best.value:.4g}", folder, progress.step)


def _diverged(what: str, folder: Path, step: int) -> UserError:
    return UserError(f"training has diverged: {what} at step {step}, which is not saved: {way_out(folder, step)}")


def way_out(folder: Path, step: int) -> str:
    """Return what to do about a run that has diverged at a step; its older checkpoints have passed `check`."""
    older = [it for it in all_checkpoints(folder / "checkpoints") if it.name < step_name(step)]
    return f"lower optim.lr, and resume with --run.resume {shown(older[-1])}" if older else "lower optim.lr"


def _tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in nested dicts and lists."""
    if isinstance(tree, Tensor):
        return [tree]
    nested = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for branch in nested for tensor in _tensors(branch)]


def _statistics(model: nn.Module) -> list[Tensor]:
    """Return the running statistics; other buffers, such as masks, may be infinite."""
    norms = [norm for norm in model.modules() if isinstance(norm, _NormBase)]
    return [value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None]


def _norms(values: list[Any], order: float) -> list[float]:
    """Return a norm of each tensor of floating-point numbers, by one copy to the host."""
    found = [_local(value) for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    found = [value for value in found if value.numel() > 0]
    if not found:
        return []
    precise = _precise(found[0].device)
    norms = torch._foreach_norm(found, order, precise)
    numbers: list[float] = torch.stack([norm.to(found[0].device, precise) for norm in norms]).tolist()
    return numbers


def _precise(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type in ("mps", "xpu") else torch.float64  # these have no float64


def _local(value: Any) -> Tensor:
    """Return the shard of a tensor on this rank, under FSDP; else the tensor."""
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return local.detach()


def _rms(initial: nn.Module) -> float:
    weights = [weight.detach() for weight in initial.parameters() if weight.requires_grad]
    squares = sum(norm**2 for norm in _norms(list(weights), 2.0))
    return math.sqrt(squares / max(sum(weight.numel() for weight in weights), 1))
