"""Weights to start from: `train.init_from`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import fingerprint
from ..config import TrainConfig
from ..distributed import World
from ..errors import UserError
from ..hooks import Hook
from .ema import Ema
from .lora import FIRST, SECOND, without
from .weight_files import read

PREFIXES = ("module.", "model.", "_orig_mod.")
"""What wrappers such as DistributedDataParallel, Lightning's modules and torch.compile put in front of names."""


OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names in files of the first BERTs, and what they are called since."""


class InitFrom(Hook):
    """Keeps in each checkpoint which weights the run started from; a run that is resumed does not need them again."""

    def __init__(self, cfg: TrainConfig, world: World) -> None:
        self.cfg, self.world = cfg, world
        self.started: dict[str, Any] = {}
        """The path, each file's size and SHA-256, and how many tensors were loaded."""

    def manifest(self) -> dict[str, Any]:
        return {"init_from": self.started}

    def state_dict(self) -> dict[str, Any]:
        return {"init_from": self.started}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.started = state.get("init_from", self.started)

    @torch.no_grad()
    def load(self, model: nn.Module) -> dict[str, str]:
        """Copy the weights of `train.init_from` into a model that may be sharded; return what to say about it.

        Raises:
            UserError: they cannot be read, or nothing in them fits the model.
        """
        assert self.cfg.init_from is not None
        weights, files = read(self.cfg.init_from)
        state = model.state_dict(keep_vars=True)
        live = {name: value for name, value in state.items() if not name.endswith((FIRST, SECOND))}  # but LoRA's own
        renamed = _renamed(weights, self.cfg)
        sources = match(live, renamed, weights)
        loaded, other_shape = set[str](), list[str]()
        for name, source in sources.items():
            value = weights[source]()
            if value.shape != live[name].shape:
                other_shape.append(f"{name} {tuple(live[name].shape)} instead of {tuple(value.shape)}")
                continue
            if _is_quantized(value, live[name]):
                raise UserError(
                    f"train.init_from is {self.cfg.init_from}: {source} there is of {value.dtype}, "
                    f"{value.layout}: give floating-point weights that are not quantized"
                )
            if isinstance(live[name], nn.Parameter) and not bool(value.isfinite().all()):
                raise UserError(
                    f"train.init_from is {self.cfg.init_from}: {source} there has values that are not finite: give "
                    "other weights"
                )
            _copy(live[name], value)
            loaded.add(name)
        if not any(live[name].ndim for name in loaded):
            raise UserError(f"train.init_from is {self.cfg.init_from}: {_why(other_shape, list(live), renamed)}")
        shared = {id(live[name]) for name in loaded}  # a weight of two names
        missing = [name for name in live if name not in sources and id(live[name]) not in shared]
        if self.world.is_main:
            hashes = {str(file): known or fingerprint(file) for file, known in files.items()}
            self.started = {"path": self.cfg.init_from, "files": hashes, "loaded": len(loaded)}
        unused = len(weights) - len(set(sources.values()))
        kept = [*([f"of another shape: {_first(other_shape)}"] if other_shape else [])]
        kept += [f"not in there: {_first(missing)}"] if missing else []
        said = {"weights": f"{len(loaded)} of {len(live)} tensors from {self.cfg.init_from}"}
        said["weights"] += f", which has {unused} more" if unused else ""
        return said | ({"initialized": "; ".join(kept)} if kept else {})


def load(model: nn.Module, hooks: Sequence[Hook]) -> dict[str, str]:
    """Load the weights that a new run starts from, also into its average of them; return what to say about it."""
    own = next(hook for hook in hooks if isinstance(hook, InitFrom))
    said = own.load(model)
    for hook in hooks:
        if isinstance(hook, Ema):
            hook.load_state_dict({"model": model.state_dict()})
    return said


def match(live: Iterable[str], named: Mapping[str, str], weights: Iterable[str]) -> dict[str, str]:
    """Return for each name of the model, where there is one, the name in the file.

    `named` has what names in the file are called in the model, apart from prefixes.
    """
    exact = {named[name]: name for name in weights}
    plain = {_plain(name): source for name, source in reversed(exact.items())}
    found = {}
    for name in live:
        for key, known in ((without(name), exact), (_plain(without(name)), plain)):
            if key in known:
                found[name] = known[key]
                break
    return found


def _plain(name: str) -> str:
    """Return a name without the prefixes of wrappers, and as it is called today."""
    name = name.replace("._orig_mod.", ".")
    for old, new in OLD.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    while prefix := next((prefix for prefix in PREFIXES if name.startswith(prefix)), ""):
        name = name.removeprefix(prefix)
    return name


def _renamed(weights: Iterable[str], cfg: TrainConfig) -> dict[str, str]:
    """Return by name in the file what `train.init_map` makes of it.

    Raises:
        UserError: one of its prefixes is that of no name.
    """
    given = cfg.init_map or {}
    found, used = {}, set[str]()
    for name in weights:
        found[name] = name
        for prefix in sorted(given, key=len, reverse=True):
            start = next((it for it in (name, _plain(name)) if it.startswith(prefix)), None)
            if start is not None:
                found[name] = given[prefix] + start.removeprefix(prefix)
                used.add(prefix)
                break
    unused = [prefix for prefix in given if prefix not in used]
    if unused:
        example = next(iter(found), "")
        cfg.refuse("init_map", f"no name in {cfg.init_from} begins with {unused[0]!r}; they are such as {example}")
    return found


def _is_quantized(value: Tensor, live: Tensor) -> bool:
    """Whether a tensor is not what it stands for: integers or fp8, whose scales are elsewhere; or of another layout."""
    numbers = value.is_floating_point() and value.dtype.itemsize > 1
    return value.layout != torch.strided or value.is_meta or (live.is_floating_point() and not numbers)


def _copy(live: Tensor, value: Tensor) -> None:
    if hasattr(live, "device_mesh"):
        from .fsdp import copy_rows

        copy_rows(live, value)
    else:
        live.copy_(value)


def _why(other_shape: Sequence[str], live: Sequence[str], weights: Mapping[str, str]) -> str:
    """Say why nothing was loaded, with the option that renames, if one prefix is the difference."""
    if other_shape:
        return f"no tensor has the shape of the model's: {_first(other_shape)}"
    for theirs in weights:
        for ours in live:
            if ours.endswith(f".{theirs}") or theirs.endswith(f".{ours}"):
                shared = min(len(ours), len(theirs))
                prefixes = json.dumps({theirs[:-shared]: ours[:-shared]})
                return f"no name is that of the model's; try train.init_map={prefixes}"
    theirs = _first([*weights.values()])
    return f"no name is that of the model's: {theirs} there, and {_first(live)} here; see train.init_map"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
