"""Small networks that communicate in `forward`, or differentiate in a validation."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section
from .data import Spec


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network."""

    kind: Literal[
        "plain",
        "batch_norm",
        "collective",
        "physics",
        "nan",
        "teacher",
        "counted",
        "counted_on_host",
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
        self.calls = 0

    def forward(
        self, inputs: Tensor, targets: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, dict[str, tuple[Any, ...]]]:
        """Return the loss and its sum and count."""
        if counts is not None:
            return self.mean_over_positions(inputs, targets, counts)
        predicted = self.layers(inputs)[:, 0]
        if self.cfg.kind == "collective" and dist.is_initialized():
            mean = predicted.detach().mean().reshape(1)
            dist.all_reduce(mean)
            predicted = predicted + 0 * mean
        errors = (predicted - targets) ** 2
        if self.cfg.kind == "physics":
            errors = errors + self.slopes(inputs)
        if self.cfg.kind == "nan" and self.training:
            self.calls += 1
            errors = errors / (self.calls != 3)
        return errors.mean() * self.cfg.loss_scale, {"loss": (errors.detach().sum(), len(errors))}

    def mean_over_positions(
        self, inputs: Tensor, targets: Tensor, counts: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Any, ...]]]:
        """Return the cross-entropy of 32 positions per sample, of which the first ones count."""
        steps = torch.linspace(0.5, 1.5, 32, device=inputs.device)
        scores = self.layers(inputs[:, None] * steps[:, None])
        labels = (targets > 0).long()[:, None].repeat(1, 32)
        labels[torch.arange(32, device=counts.device) >= counts[:, None]] = -100
        # NaN if all are ignored
        loss = F.cross_entropy(torch.cat([-scores, scores], 2).flatten(0, 1), labels.flatten())
        count: Any = (labels >= 0).sum()
        if self.cfg.kind == "counted_on_host":
            count = int(count)
        return loss, {"loss": (loss.detach() * count, count)}

    def slopes(self, inputs: Tensor) -> Tensor:
        """Return the mean of each sample's squared gradient by its inputs."""
        with torch.enable_grad():
            inputs = inputs.detach().requires_grad_()
            (found,) = torch.autograd.grad(
                self.layers(inputs).sum(),
                inputs,
                create_graph=True,
            )
        return (found**2).mean(1)


def build(cfg: ModelConfig, spec: Spec) -> nn.Module:
    """Build the network; a teacher gives it its weights."""
    net = Net(cfg, spec)
    if cfg.teacher:
        from .checkpoint import load_weights

        net.load_state_dict(load_weights(cfg.teacher))
    return net
