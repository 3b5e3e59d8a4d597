"""A model with two phases, and metrics that are no means, for the tests: a small GAN on the data of the project."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import faults, model
from ..contracts import Metrics
from ..techniques import _model


def auroc(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the area under the ROC curve: how often a positive sample has the higher score."""
    gaps = scores[labels == 1][:, None] - scores[labels == 0]
    return ((gaps > 0).double() + 0.5 * (gaps == 0)).mean()


def auroc_object() -> Any:
    """Return that of torchmetrics, where it is installed."""
    try:
        return importlib.import_module("torchmetrics.classification").BinaryAUROC()
    except ImportError:
        return auroc


def weighted(values: Tensor) -> Tensor:
    """Return what depends on the order of all samples."""
    return (values.double() * torch.arange(len(values))).sum()


def longest(lengths: list[Tensor]) -> dict[str, float]:
    """Return two numbers of outputs of several lengths."""
    return {"most": max(len(each) for each in lengths), "count": len(lengths)}


class Gan(nn.Module):
    """Two small networks on the first four numbers of a sample."""

    phases = ("critic", "critic", "generator")
    phase = ""

    def __init__(self) -> None:
        super().__init__()
        self.lr_scale = {"critic.*": 2.0}
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.auroc = auroc_object()
        self.seen: list[tuple[str, bool]] = []

    def forward(self, first: Tensor, *others: Tensor) -> tuple[Tensor, Metrics]:
        real = first.flatten(1)[:, :4].float()
        count = len(real)
        if self.training:
            self.seen.append((self.phase, next(self.critic.parameters()).requires_grad))
            noise = torch.randn(count, 2)
        else:
            noise = real[:, :2]
        fake = self.generator(noise)
        if self.phase == "generator":
            loss = F.softplus(-self.critic(fake)).mean()
            return loss, {"loss": (loss.detach() * count, count), "g_loss": (loss.detach() * count, count)}
        scores = torch.cat([self.critic(real), self.critic(fake.detach())])[:, 0]
        labels = torch.cat([torch.ones_like(real[:, 0]), torch.zeros_like(real[:, 0])])
        loss = F.binary_cross_entropy_with_logits(scores, labels)
        metrics: dict[str, Any] = {"loss": (loss.detach() * count, count), "auroc": (self.auroc, scores, labels.long())}
        by_column = fake.detach().abs().sum(0)
        return loss, metrics | {
            "by_column": (by_column, torch.full_like(by_column, count)),
            "weighted": (weighted, real[:, 0]),
            "": (longest, [torch.zeros(1 + place % 3) for place in range(count)]),
        }


def install(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let runs and tools have this model."""
    for module in (_model, faults, model):
        set_attribute(module, "build", lambda *_: Gan())
