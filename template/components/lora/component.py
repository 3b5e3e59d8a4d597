"""Low-rank adapters (LoRA), Hu et al. 2021 (arXiv:2106.09685), with peft."""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from ..component import Component, Step
from ..config_base import Section, within
from ..distributed import World
from ..errors import UserError
from ..run import Run

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class LoraConfig(Section):
    """Low-rank adapters."""

    is_fixed = True
    enabled: bool = False
    """Train adapters of the layers in `target`, and the modules in `train`; freeze all other
    parameters."""
    target: tuple[str, ...] = ()
    """Linear layers and convolutions to adapt, as glob patterns of module names; empty: all of
    them."""
    rank: int = within("[1, 65536]", 8)
    """Rank of an adapter's two matrices."""
    alpha: float = within("(0, inf)", 16.0)
    """The product of the two matrices is multiplied by alpha / rank."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability of the adapters' inputs."""
    train: tuple[str, ...] = ()
    """Modules or parameters to train in full, as glob patterns, such as a new head."""


class Lora(Component):
    """Replaces layers by peft's, in place: the model keeps its class, and the names of the rest."""

    name = "lora"

    def __init__(
        self,
        cfg: LoraConfig,
        world: World,
    ) -> None:
        self.cfg = cfg

    def convert_model(self, model: nn.Module) -> nn.Module:
        try:
            import peft
        except ImportError as error:
            failed = f"its package fails to load ({error})"
            self.cfg.refuse("enabled", f"{failed}: pip install 'peft>=0.19'")
        parameters = dict(model.named_parameters())
        trained = _matched(self.cfg.train, list(parameters), "lora.train")
        layers = [name for name in self._layers(model) if f"{name}.weight" not in trained]
        if not layers:
            left = "name fewer, or set lora.enabled=false"
            self.cfg.refuse("train", f"it has all layers to adapt: {left}")
        adapters = peft.LoraConfig(
            # a pattern, as peft takes a name for that of every layer's end
            target_modules="|".join(map(re.escape, layers)),
            r=self.cfg.rank,
            lora_alpha=self.cfg.alpha,
            lora_dropout=self.cfg.dropout,
        )
        peft.inject_adapter_in_model(adapters, model)
        for name in trained:
            parameters[name].requires_grad_()
        return model

    def wrap_step(self, run: Run, step: Step) -> Step:
        _hold_norms(run.model)
        return step

    def on_validation(
        self,
        run: Run,
        results: dict[str, float],
    ) -> None:
        _hold_norms(run.model)  # a validation ends with `train()`

    def _layers(self, model: nn.Module) -> list[str]:
        """Return the layers to adapt: those of their own weight, which the model calls."""
        uses: Counter[Tensor] = Counter(
            weight for _, weight in model.named_parameters(remove_duplicate=False)
        )
        not_called = set[nn.Module]()
        for module in model.modules():
            if isinstance(module, nn.MultiheadAttention):  # reads their weights instead
                not_called.update(module.modules())
        own = []
        for name, layer in model.named_modules():
            if isinstance(layer, LAYERS) and layer not in not_called and uses[layer.weight] == 1:
                own.append(name)
        if not own:
            missing = f"{type(model).__name__} has no linear layer or convolution"
            raise UserError(f"lora.enabled: {missing} whose weight is its own")
        return sorted(_matched(self.cfg.target, own, "lora.target")) or own


def merged(model: nn.Module) -> nn.Module:
    """Add the adapters to the weights, in place: the model has its original modules and names."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            model.set_submodule(name, module.get_base_layer())
    return model


def _hold_norms(model: nn.Module) -> None:
    """Let BatchNorms that are not trained keep their statistics, and normalize with them."""
    for module in model.modules():
        trained = any(weight.requires_grad for weight in module.parameters())
        if isinstance(module, NORMS) and not trained:
            module.eval()


def _matched(
    patterns: Iterable[str],
    names: list[str],
    key: str,
) -> set[str]:
    """Return the names that match, or are in a module that does."""
    matched = set[str]()
    for pattern in patterns:
        own = fnmatch.filter(names, pattern) + fnmatch.filter(names, f"{pattern}.*")
        if not own:
            some = ", ".join(names[:3])
            raise UserError(f"{key} has {pattern!r}, which matches none of {some} and so on")
        matched.update(own)
    return matched
