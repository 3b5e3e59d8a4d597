"""A linear classifier of images."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section
from .data import Spec


@dataclass(frozen=True)
class ModelConfig(Section):
    """The classifier's size."""

    scale: float = 1.0
    """Factor of the scores."""


class Linear(nn.Module):
    """Images to class scores."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.scale = cfg.scale
        self.layer = nn.Linear(spec.channels * spec.size**2, len(spec.classes))

    def forward(
        self, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and sums with counts."""
        scores = self.layer(images.flatten(1)) * self.scale
        loss = F.cross_entropy(scores, labels)
        correct = (scores.argmax(1) == labels).sum()
        return loss, {
            "loss": (loss.detach() * len(labels), len(labels)),
            "accuracy": (correct, len(labels)),
        }


def build(cfg: ModelConfig, spec: Spec) -> Linear:
    """Make the classifier."""
    return Linear(cfg, spec)
