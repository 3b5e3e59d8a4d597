"""A model of your own: replace the layers, the loss and the metrics.

This file is yours to edit. The rest of the project uses `ModelConfig` and `build`; see contracts.py.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config_base import Section, within
from ...contracts import Sums
from .data import Spec


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture: the options `--model.*`."""

    width: int = within("[8, inf)", 64)
    """Width of the hidden layer."""


class Network(nn.Module):
    """Numbers (n, features) to class logits (n, classes)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.hidden = nn.Linear(spec.features, cfg.width)
        self.head = nn.Linear(cfg.width, spec.classes)

    def predict(self, numbers: Tensor) -> Tensor:
        """Class logits of prepared inputs, for the tools."""
        logits: Tensor = self.head(F.relu(self.hidden(numbers)))
        return logits

    def forward(self, numbers: Tensor, classes: Tensor) -> tuple[Tensor, Sums]:
        """Return the mean loss, and for each metric its sum over the batch and the number of samples."""
        logits, count = self.predict(numbers), len(classes)
        loss = F.cross_entropy(logits, classes)
        with torch.no_grad():
            correct = (logits.argmax(1) == classes).sum()
        return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}


def build(cfg: ModelConfig, spec: Spec) -> Network:
    """Build the model for this data, with initialized weights."""
    return Network(cfg, spec)
