"""Parameters that are not trained: `train.freeze`, until `train.unfreeze_step`."""

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from types import MethodType

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..config import Config, TrainConfig
from ..errors import UserError


def freeze(model: nn.Module, cfg: TrainConfig) -> None:
    """Let the parameters that `train.freeze` names have no gradient.

    Raises:
        UserError: a pattern matches nothing; or nothing is frozen, or left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    norms = {name: part for name, part in model.named_modules() if isinstance(part, _BatchNorm)}
    # Of BatchNorm without weights, which has statistics only.
    frozen = matched(cfg.freeze, [*names, *(f"{name}.running_mean" for name in norms)], "train.freeze")
    if not frozen:
        cfg.refuse("freeze", "it freezes nothing, as all that it names is excepted; begin with '*'")
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        cfg.refuse("freeze", "no parameter is left to train; name fewer, or except some such as with '!head'")
    hold_norms({name: part for name, part in norms.items() if [*part.parameters()] or f"{name}.running_mean" in frozen})


def hold_norms(norms: dict[str, _BatchNorm]) -> None:
    """Keep those of these BatchNorms in evaluation mode that have no weight to train: with the statistics they have."""
    for norm in norms.values():
        if not any(parameter.requires_grad for parameter in norm.parameters()):
            norm.eval()
            norm.train = MethodType(_stay, norm)  # type: ignore[method-assign]


def _stay(norm: nn.Module, mode: bool = True) -> nn.Module:
    return norm


def begin(model: nn.Module, cfg: Config, step: int, total_steps: int) -> dict[str, str]:
    """Freeze until `train.unfreeze_step`, in a run that is at `step`. The optimizer has all parameters from its start.

    Returns what to say about it.

    Raises:
        UserError: as `freeze`; or the run keeps no checkpoint to go on from, or another option conflicts.
    """
    train = cfg.train
    assert train.unfreeze_step is not None
    if cfg.optim.schedule == "range":
        train.refuse("unfreeze_step", "a range test keeps no checkpoint to go on from; use null")
    if cfg.speed.step_graph:
        train.refuse("unfreeze_step", "speed.step_graph needs a gradient of each parameter; use null, or no step_graph")
    if hasattr(model, "phases"):
        train.refuse("unfreeze_step", "the model's `phases` choose in each step what is trained; use null")
    if step >= train.unfreeze_step:
        return {}
    freeze(model, train)
    beyond = ", which this run does not reach" if train.unfreeze_step >= total_steps else ""  # such as a smoke test
    return {"frozen": f"until step {train.unfreeze_step}{beyond}"}


def matched(patterns: Iterable[str], names: Sequence[str], option: str) -> set[str]:
    """Return the names that are matched, that are in a module that is, and not by a later pattern with `!`.

    Raises:
        UserError: a pattern of the `option` matches none.
    """
    found = set[str]()
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        these = {name for name in names if fnmatchcase(name, plain) or fnmatchcase(name, f"{plain}.*")}
        if not these:
            raise UserError(f"{option} has {pattern!r}, and nothing in the model has such a name{_near(plain, names)}")
        found = found - these if pattern.startswith("!") else found | these
    return found


def _near(pattern: str, names: Iterable[str]) -> str:
    """Name what is spelled alike, or else what there is."""
    parts = [name.split(".") for name in names]
    known = {".".join(part[:count]): None for part in parts for count in range(1, len(part) + 1)}
    near = difflib.get_close_matches(pattern.removesuffix(".*"), known, 3)
    if near:
        return f": did you mean {' or '.join(near)}?"
    first = list(dict.fromkeys(part[0] for part in parts))
    return f": it has {', '.join(first[:8])}{' and more' * (len(first) > 8)}"
