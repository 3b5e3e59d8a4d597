"""Small networks with what a model may do: communicate in `forward`, or differentiate in a validation."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .config_base import Section
from .data import Spec


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network."""

    kind: Literal[
        "plain", "batch_norm", "collective", "physics", "physics_unsaid", "nan", "teacher"
    ] = "plain"
    """What is particular to the network."""
    teacher: str = ""
    """Run folder of the teacher."""
    dropout: float = 0.2
    """Probability of a unit to be dropped."""
    loss_scale: float = 1.0
    """Factor of the loss."""


class Net(nn.Module):
    """Two layers."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.cfg = cfg
        norm = nn.BatchNorm1d(8) if cfg.kind == "batch_norm" else nn.Identity()
        layers = (
            nn.Linear(spec.inputs, 8, bias=False),
            norm,
            nn.Tanh(),
            nn.Dropout(cfg.dropout),
            nn.Linear(8, 1),
        )
        self.layers = nn.Sequential(*layers)
        self.needs_gradients_in_validation = cfg.kind == "physics"
        self.calls = 0

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, tuple[Any, ...]]]:
        """Return the loss and its sum and count."""
        predicted = self.layers(inputs)[:, 0]
        if self.cfg.kind == "collective" and dist.is_initialized():
            mean = predicted.detach().mean().reshape(1)
            dist.all_reduce(mean)
            predicted = predicted + 0 * mean
        errors = (predicted - targets) ** 2
        if self.cfg.kind.startswith("physics"):
            errors = errors + self.slopes(inputs)
        if self.cfg.kind == "nan" and self.training:
            self.calls += 1
            errors = errors / (self.calls != 3)
        return errors.mean() * self.cfg.loss_scale, {"loss": (errors.detach().sum(), len(errors))}

    def slopes(self, inputs: Tensor) -> Tensor:
        """Return the mean of each sample's squared gradient by its inputs."""
        with torch.enable_grad():
            inputs = inputs.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.layers(inputs).sum(), inputs, create_graph=True)
        return (found**2).mean(1)


def build(cfg: ModelConfig, spec: Spec) -> nn.Module:
    """Build the network; a teacher gives it its weights."""
    net = Net(cfg, spec)
    if cfg.teacher:
        from .checkpoint import load_weights

        net.load_state_dict(load_weights(cfg.teacher))
    return net
