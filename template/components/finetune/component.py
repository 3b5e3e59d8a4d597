"""Fine-tuning: pretrained weights, frozen parameters, learning rates by layer."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import load_weights, newest
from ..component import Component, Step
from ..config_base import Section, within
from ..contracts import blocks
from ..distributed import World
from ..errors import UserError
from ..run import Run

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class FinetuneConfig(Section):
    """Pretrained weights, frozen parameters, and learning rates by layer."""

    enabled: bool = False
    """Start from `weights`, and apply the other options."""
    weights: Path | None = None
    """Safetensors or torch file, folder of Hugging Face weights, or folder of a run; null: random weights."""
    strip_prefix: str = ""
    """Prefix to remove from names in the file, such as `module.`."""
    add_prefix: str = ""
    """Prefix to add to names in the file, such as `bert.`."""
    freeze: tuple[str, ...] = ()
    """Modules or parameters not to train, as glob patterns; a later pattern with `!` excludes: ["*", "!head"]."""
    unfreeze_at: int | None = within("[1, inf)", None)
    """Optimizer step at which all parameters become trainable; null: never."""
    lr_decay: float = within("(0, 1]", 1.0)
    """Learning rate of each of the model's `blocks` as a multiple of the next one's (arXiv:1801.06146, section 3.2)."""


class Finetune(Component):
    """Loads weights into a new run, freezes parameters, and scales the learning rates of layers."""

    name = "finetune"

    def __init__(self, cfg: FinetuneConfig, world: World) -> None:
        self.cfg, self.until = cfg, cfg.unfreeze_at or math.inf
        self.frozen: set[str] = set()

    def convert_model(self, model: nn.Module) -> nn.Module:
        """Freeze.

        What is trained later keeps its gradients, which DistributedDataParallel reduces from its
        start.
        """
        names = [name for name, _ in model.named_parameters()]
        self.frozen = matched(self.cfg.freeze, names)
        if len(self.frozen) == len(names):
            self.cfg.refuse("freeze", 'nothing is left to train: exclude a part, such as "!head"')
        for name in self.frozen if self.cfg.unfreeze_at is None else ():
            model.get_parameter(name).requires_grad_(False)
        return model

    def on_train_start(self, run: Run) -> None:
        """Load the weights, unless the run is resumed, which needs no file; and divide the optimizer's groups."""
        resumed = run.world.broadcast(
            str(newest(run.folder / "checkpoints") or "") if run.world.rank == 0 else ""
        )
        if self.cfg.weights is not None:
            found = (
                "finetune: resumed, nothing is loaded"
                if resumed
                else load(run.model, self.cfg.weights, self.cfg)
            )
            run.world.run_on_rank_zero(lambda: print(found))
        if self.cfg.lr_decay != 1:
            scale_rates(run.optimizer, run.model, self.cfg.lr_decay)

    def wrap_step(self, run: Run, step: Step) -> Step:
        self._hold(run)
        frozen = [
            parameter for name, parameter in run.model.named_parameters() if name in self.frozen
        ]

        def without_frozen() -> Tensor:
            for parameter in frozen if run.step < self.until else ():
                parameter.grad = None  # so that neither clipping nor the optimizer sees it
            return step.update_weights()

        return step._replace(update_weights=without_frozen) if self.cfg.unfreeze_at else step

    def on_step_end(self, run: Run) -> None:
        if run.step == self.until:
            self._hold(run)

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        self._hold(run)  # a validation ends with `train()`

    def _hold(self, run: Run) -> None:
        """Let frozen BatchNorms keep their statistics, and normalize with them."""
        for name, module in run.model.named_modules():
            if (
                isinstance(module, NORMS)
                and f"{name}.weight" in self.frozen
                and f"{name}.bias" in self.frozen
            ):
                module.train(run.step >= self.until)


def matched(patterns: Iterable[str], names: list[str]) -> set[str]:
    """Return the names that match, or are in a module that does; patterns with `!` take names out again."""
    found = set[str]()
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        these = {
            name for name in names if fnmatchcase(name, plain) or fnmatchcase(name, f"{plain}.*")
        }
        if not these:
            there = ", ".join(dict.fromkeys(name.split(".")[0] for name in names))
            raise UserError(
                f"finetune.freeze has {pattern!r}, but no parameter has such a name: the model has {there}"
            )
        found = found - these if pattern.startswith("!") else found | these
    return found


@torch.no_grad()
def load(model: nn.Module, source: Path, cfg: FinetuneConfig) -> str:
    """Copy weights into a model, which may be sharded or have adapters; return what was loaded."""
    given = {
        cfg.add_prefix + name.removeprefix(cfg.strip_prefix): value
        for name, value in read(source).items()
    }
    for old, new in (
        ("gamma", "weight"),
        ("beta", "bias"),
    ):  # in the published files of the first BERTs
        given = {
            re.sub(f"LayerNorm.{old}$", f"LayerNorm.{new}", name): value
            for name, value in given.items()
        }
    live = {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor)
    }
    if any(".lora_A." in name for name in given) and not any(".lora_A." in name for name in live):
        raise UserError(
            f"finetune.weights is {source}: merge its LoRA adapters first, or set lora.enabled=true"
        )
    loaded, other, unused = dict[str, Tensor](), list[str](), set(given)
    for name, target in live.items():
        key = name if name in given else name.replace(".base_layer.", ".")  # of LoRA
        value = given.get(key, target)
        unused.discard(key)
        if value.shape != target.shape or value.is_floating_point() != target.is_floating_point():
            other.append(name)
        elif key in given:
            _copy(value, target)
            loaded[name] = target
    if not any(value.ndim for value in loaded.values()):
        names = f"it has {next(iter(given), 'nothing')}, and the model {next(iter(live))}"
        raise UserError(
            f"finetune.weights is {source}: nothing fits ({names}); see finetune.add_prefix"
        )
    tied = {id(value) for value in loaded.values()}  # a tied weight has two names
    missing = [
        it for it in live if id(live[it]) not in tied and it not in other and ".lora_" not in it
    ]
    left = {
        "of another shape or type": other,
        "missing": missing,
        "not in the model": sorted(unused),
    }
    rest = [
        f", {len(names)} {what} ({', '.join(names[:2])})" for what, names in left.items() if names
    ]
    return f"finetune: loaded {len(loaded)} of {len(live)} tensors from {source}{''.join(rest)}"


def read(source: Path) -> dict[str, Tensor]:
    """Return the weights in a file or a folder, by name; nothing in them is executed."""
    if (source / "checkpoints").is_dir():
        return load_weights(source)
    # names of Hugging Face
    file, index = (
        source / "model.safetensors",
        source / "model.safetensors.index.json",
    )
    files = [source if source.is_file() else file]
    if index.is_file():
        files = [
            source / part
            for part in sorted(set(json.loads(index.read_text())["weight_map"].values()))
        ]
    elif not files[0].is_file():
        raise UserError(
            f"finetune.weights is {source}: there is no such file or run, or folder with {file.name}"
        )
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            found |= _read(file)
        except Exception as error:  # torch and safetensors raise many kinds
            raise UserError(
                f"finetune.weights: {file} is missing, damaged, or has more than named tensors"
            ) from error
    return found


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    # of checkpoints
    inside = [loaded[key] for key in ("state_dict", "model") if isinstance(loaded.get(key), dict)]
    return {
        name: value for name, value in (inside or [loaded])[0].items() if isinstance(value, Tensor)
    }


def _copy(value: Tensor, live: Any) -> None:
    value = value.to(live.device, live.dtype)
    if hasattr(
        live, "device_mesh"
    ):  # sharded; each rank has read the whole, so that none has to send it
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value, live.device_mesh, live.placements, src_data_rank=None)
    live.copy_(value)


def scale_rates(optimizer: torch.optim.Optimizer, model: nn.Module, decay: float) -> None:
    """Divide the optimizer's groups by depth; what is registered before the blocks counts as one more block."""
    layers = blocks(model)
    if not layers:
        raise UserError(
            "finetune.lr_decay needs a model with `blocks`, a ModuleList of its layers: set it to 1"
        )
    places = {
        id(parameter): place
        for place, block in enumerate(layers, 1)
        for parameter in block.parameters()
    }
    place, depth = 0, dict[int, int]()
    for parameter in model.parameters():
        place = places.get(id(parameter), len(layers) + 1 if place else 0)
        depth[id(parameter)] = len(layers) + 1 - place
    for part in (
        parts := getattr(optimizer, "parts", [optimizer])
    ):  # of one that consists of several
        groups: dict[tuple[int, int], dict[str, Any]] = {}
        for number, group in enumerate(part.param_groups):
            for parameter in group["params"]:
                below = depth[id(parameter)]
                divided = group | {
                    "params": [],
                    "lr_scale": decay**below * group.get("lr_scale", 1.0),
                }
                groups.setdefault((number, below), divided)["params"].append(parameter)
        part.param_groups[:] = groups.values()
    optimizer.param_groups = [group for part in parts for group in part.param_groups]
