"""Fine-tuning: pretrained weights, frozen parameters, learning rates by layer."""

import fnmatch
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import best, load_weights, newest, spec_of
from ..component import Component, Step
from ..config_base import Section, within
from ..contracts import blocks, spec_differences
from ..distributed import World
from ..errors import UserError
from ..run import Run

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class FinetuneConfig(Section):
    """Pretrained weights, frozen parameters, and learning rates by layer."""

    is_fixed = True
    enabled: bool = False
    """Start from `weights`, and apply the other options."""
    weights: Path | None = None
    """Safetensors or torch file, folder of Hugging Face weights, or folder of a run; null: random
    weights."""
    strip_prefix: str = ""
    """Prefix to remove from names in the file, such as `module.`."""
    add_prefix: str = ""
    """Prefix to add to names in the file, such as `bert.`."""
    freeze: tuple[str, ...] = ()
    """Modules or parameters not to train, as glob patterns; a later pattern with `!` excludes:
    ["*", "!head"]."""
    unfreeze_at: int | None = within("[1, inf)", None)
    """Optimizer step at which all parameters become trainable; null: never."""
    lr_decay: float = within("(0, 1]", 1.0)
    """Learning rate of each of the model's `blocks` as a multiple of the next one's
    (arXiv:1801.06146, section 3.2)."""


class Finetune(Component):
    """Loads weights into a new run, freezes parameters, and scales the learning rates of layers."""

    name = "finetune"

    def __init__(self, cfg: FinetuneConfig, world: World) -> None:
        self.cfg = cfg
        self.until = cfg.unfreeze_at or math.inf
        self.frozen: set[str] = set()

    def convert_model(self, model: nn.Module) -> nn.Module:
        """Freeze; DistributedDataParallel must reduce gradients of what is trained later."""
        names = [name for name, _ in model.named_parameters()]
        self.frozen = matched(self.cfg.freeze, names)
        if len(self.frozen) == len(names):
            self.cfg.refuse("freeze", 'nothing is left to train: exclude a part, such as "!head"')
        if self.cfg.unfreeze_at is None:
            for name in self.frozen:
                model.get_parameter(name).requires_grad_(False)
        return model

    def on_train_start(self, run: Run) -> None:
        """Load the weights, unless the run is resumed; and divide the optimizer's groups."""
        if self.cfg.weights is not None:
            resumed = run.world.run_on_rank_zero(lambda: newest(run.folder / "checkpoints"))
            message = "finetune: resumed, nothing is loaded"
            if not resumed:
                message = load(run.model, self.cfg.weights, self.cfg)
                message += other_data(self.cfg.weights, run.spec)
            run.world.run_on_rank_zero(lambda: print(message))
        if self.cfg.lr_decay != 1:
            scale_rates(run.optimizer, run.model, self.cfg.lr_decay)

    def wrap_step(self, run: Run, step: Step) -> Step:
        self._hold(run)
        if self.cfg.unfreeze_at is None:
            return step
        frozen = [run.model.get_parameter(name) for name in self.frozen]

        def update_weights() -> Tensor:
            if run.step < self.until:
                for parameter in frozen:
                    parameter.grad = None  # so that neither clipping nor the optimizer sees it
            return step.update_weights()

        return Step(step.compute_gradients, update_weights)

    def on_step_end(self, run: Run) -> None:
        if run.step == self.until:
            self._hold(run)

    def on_validation(
        self,
        run: Run,
        results: dict[str, float],
    ) -> None:
        self._hold(run)  # a validation ends with `train()`

    def _hold(self, run: Run) -> None:
        """Let frozen BatchNorms keep their statistics, and normalize with them."""
        for name, module in run.model.named_modules():
            own = {f"{name}.weight", f"{name}.bias"}
            if isinstance(module, NORMS) and own <= self.frozen:
                module.train(run.step >= self.until)


def matched(
    patterns: Iterable[str],
    names: list[str],
) -> set[str]:
    """Return the names that match, or whose module does; patterns with `!` take names out again."""
    chosen: set[str] = set()
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        these = {*fnmatch.filter(names, plain), *fnmatch.filter(names, f"{plain}.*")}
        if not these:
            parts = dict.fromkeys(name.split(".")[0] for name in names)
            raise UserError(
                f"finetune.freeze has {pattern!r}, but no parameter has such a name: "
                f"the model has {', '.join(parts)}"
            )
        if pattern.startswith("!"):
            chosen -= these
        else:
            chosen |= these
    return chosen


@torch.no_grad()
def load(model: nn.Module, source: Path, cfg: FinetuneConfig) -> str:
    """Copy weights into a model, which may be sharded or have adapters; return what was loaded."""
    given = renamed(read(source), cfg)
    live = tensors(model.state_dict(keep_vars=True))
    if has_adapters(given) and not has_adapters(live):
        raise UserError(
            f"finetune.weights is {source}: merge its LoRA adapters first, or set lora.enabled=true"
        )
    loaded: list[Tensor] = []
    other: list[str] = []
    absent: list[str] = []
    unused = set(given)
    for name, target in live.items():
        key = name if name in given else name.replace(".base_layer.", ".")  # of LoRA
        unused.discard(key)
        if key not in given:
            absent.append(name)
        elif is_like(given[key], target):
            _copy(given[key], target)
            loaded.append(target)
        else:
            other.append(name)
    if not any(value.ndim for value in loaded):
        names = f"it has {next(iter(given), 'nothing')}, and the model {next(iter(live))}"
        raise UserError(
            f"finetune.weights is {source}: nothing fits ({names}); see finetune.add_prefix"
        )
    tied = {id(value) for value in loaded}  # a tied weight has two names
    missing = [name for name in absent if id(live[name]) not in tied and ".lora_" not in name]
    message = f"finetune: loaded {len(loaded)} of {len(live)} tensors from {source}"
    message += listed(other, "of another shape or type")
    message += listed(missing, "missing")
    return message + listed(sorted(unused), "not in the model")


def other_data(source: Path, spec: Any) -> str:
    """Return what of the data differs from those of the run with the weights, such as classes."""
    saved = spec_of(best(source)) if (source / "checkpoints").is_dir() else None
    names = spec_differences(spec, saved) if saved else []
    return f"; its data differ in {', '.join(names)}" if names else ""


def has_adapters(weights: dict[str, Tensor]) -> bool:
    """Whether there are matrices of LoRA."""
    return any(".lora_A." in name for name in weights)


def listed(names: list[str], what: str) -> str:
    """Return the number of names, and the first two."""
    return f", {len(names)} {what} ({', '.join(names[:2])})" if names else ""


def is_like(value: Tensor, target: Tensor) -> bool:
    """Whether two tensors have one shape, and are both of floats or both of integers."""
    same_kind = value.is_floating_point() == target.is_floating_point()
    return same_kind and value.shape == target.shape


def renamed(
    weights: dict[str, Tensor],
    cfg: FinetuneConfig,
) -> dict[str, Tensor]:
    """Return weights by the model's names."""
    result = {}
    for name, value in weights.items():
        new = cfg.add_prefix + name.removeprefix(cfg.strip_prefix)
        # in the published files of the first BERTs
        new = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", new)
        new = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", new)
        result[new] = value
    return result


def read(source: Path) -> dict[str, Tensor]:
    """Return the weights in a file or a folder, by name; nothing in them is executed."""
    if (source / "checkpoints").is_dir():
        return load_weights(source)
    # names of Hugging Face
    single = source / "model.safetensors"
    index = source / "model.safetensors.index.json"
    if source.is_file():
        files = [source]
    elif index.is_file():
        parts = json.loads(index.read_text())["weight_map"].values()
        files = [source / part for part in sorted(set(parts))]
    elif single.is_file():
        files = [single]
    else:
        raise UserError(
            f"finetune.weights is {source}: "
            "there is no such file or run, or folder with model.safetensors"
        )
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= _read(file)
        except Exception as error:  # torch and safetensors raise many kinds
            raise UserError(
                f"finetune.weights: {file} is missing, damaged, or has more than named tensors"
            ) from error
    return weights


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    state: Any = torch.load(file, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):  # of checkpoints
        inside = state.get(key)
        if isinstance(inside, dict):
            state = inside
    return tensors(state)


def tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the values that are tensors."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _copy(value: Tensor, live: Any) -> None:
    value = value.to(live.device, live.dtype)
    if hasattr(live, "device_mesh"):
        # sharded; each rank has read the whole, so that none has to send it
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value, live.device_mesh, live.placements, src_data_rank=None)
    live.copy_(value)


def scale_rates(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    decay: float,
) -> None:
    """Divide the optimizer's groups by depth; what is before the blocks is one more block."""
    below = distances(model)
    optimizers = getattr(optimizer, "parts", [optimizer])  # one may consist of several
    every: list[dict[str, Any]] = []
    for part in optimizers:
        groups: dict[tuple[int, int], dict[str, Any]] = {}
        for number, group in enumerate(part.param_groups):
            for parameter in group["params"]:
                distance = below[id(parameter)]
                scale = decay**distance * group.get("lr_scale", 1.0)
                new = group | {"params": [], "lr_scale": scale}
                divided = groups.setdefault((number, distance), new)
                divided["params"].append(parameter)
        part.param_groups[:] = groups.values()
        every += part.param_groups
    optimizer.param_groups = every


def distances(model: nn.Module) -> dict[int, int]:
    """Return how many blocks each parameter, by its id, is below what follows the last block."""
    layers = blocks(model)
    if not layers:
        raise UserError(
            "finetune.lr_decay needs a model with `blocks`, a ModuleList of its layers: set it to 1"
        )
    places = {}
    for place, block in enumerate(layers, 1):
        for parameter in block.parameters():
            places[id(parameter)] = place
    place = 0
    below = {}
    for parameter in model.parameters():
        after = len(layers) + 1 if place else 0
        place = places.get(id(parameter), after)
        below[id(parameter)] = len(layers) + 1 - place
    return below
