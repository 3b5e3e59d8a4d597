"""A residual multi-layer perceptron for tables: Gorishniy et al. 2021 (arXiv:2106.11959), section 3.2, their "ResNet".

Yours to change. The rest of the project needs `ModelConfig`, `build`, and a `forward` that returns the loss and sums.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec

SIZES: dict[str, dict[str, object]] = {
    "small": {"width": 64, "depth": 2, "embedding": 8},
    "wide": {"width": 512, "depth": 4, "embedding": 32},
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network's size, and its loss."""

    size: Literal["small", "wide"] = "small"
    """The network's size; a value given below goes before it."""
    width: int = within("[0, inf)", 0)
    """Size of the residual stream; inside a block it is twice as wide. 0: as `size` says."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks. 0: as `size` says."""
    embedding: int = within("[0, inf)", 0)
    """Size of the vector that stands for a category, in tables that have some. 0: as `size` says."""
    dropout: float = within("[0, 1)", 0.1)
    """Share of activations dropped in training, inside a block and at its end."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Share of each label that training spreads over all classes: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        for key in ("width", "embedding"):
            if getattr(self, key) % 8:
                self.refuse(key, "it must be a multiple of 8, which Tensor Cores need")


class Block(nn.Module):
    """A two-layer perceptron on a normalised copy, added back."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width, bias=False)  # all that read the stream begin with BatchNorm
        self.drop = nn.Dropout(dropout)
        # He et al. 2015, arXiv:1502.01852. Each block starts as the identity: arXiv:1706.02677, section 5.1.
        nn.init.kaiming_normal_(self.widen.weight, nonlinearity="relu")
        nn.init.zeros_(self.widen.bias)
        nn.init.zeros_(self.narrow.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(F.relu(self.widen(self.norm(x))))
        added: Tensor = self.drop(self.narrow(hidden))
        return x + added


class MLP(nn.Module):
    """Numbers (n, numeric and indicator columns) and codes (n, categorical columns) to class scores, or to a number."""

    offsets: Tensor

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing, self.classifies = cfg.label_smoothing, bool(spec.classes)
        self.mean, self.std = spec.target_mean, spec.target_std
        self.center = (spec.center - spec.target_mean) / spec.target_std
        starts = [0, *accumulate(1 + len(names) for names in spec.categories)]
        self.register_buffer("offsets", torch.tensor(starts[:-1], dtype=torch.int64), persistent=False)
        # One table for all columns, each at its own offset: one kernel instead of one a column.
        self.categories = nn.Embedding(starts[-1], cfg.embedding) if spec.categories else None
        inputs = len(spec.numeric) + len(spec.indicated) + len(spec.categories) * cfg.embedding
        self.padding = -inputs % 8
        self.stem = nn.Linear(inputs + self.padding, cfg.width, bias=False)
        self.blocks = nn.ModuleList(Block(cfg.width, cfg.dropout) for _ in range(cfg.depth))
        self.norm = nn.BatchNorm1d(cfg.width)
        self.head = nn.Linear(cfg.width, len(spec.classes) or 1)
        nn.init.kaiming_normal_(self.stem.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.weight)  # so that the first guess is an even one, or the mean
        nn.init.zeros_(self.head.bias)
        if self.categories is not None:
            nn.init.normal_(self.categories.weight)  # at the numbers' scale; but what may never be seen says nothing
            with torch.no_grad():
                self.categories.weight[self.offsets] = 0.0

    def scores(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Class scores (n, classes) before softmax, or the standardised target (n, 1)."""
        x = numbers
        if self.categories is not None:
            x = torch.cat([x, self.categories(codes + self.offsets).flatten(1)], dim=1)
        x = self.stem(F.pad(x, (0, self.padding)))
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.norm(x))
        kind = "cpu" if x.is_meta else x.device.type  # there is no autocast for meta, on which a step's work is counted
        with torch.autocast(kind, enabled=False):  # bf16 would round a prediction to three digits
            found: Tensor = self.head(x.to(self.head.weight.dtype))
        return found

    def predict(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Class scores (n, classes) before softmax, or the target (n,) in its own unit, of prepared rows."""
        found = self.scores(numbers, codes)
        return found if self.classifies else found.squeeze(1) * self.std + self.mean

    def forward(
        self, numbers: Tensor, codes: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor | int]]]:
        """Return the mean loss, and for each metric its sum over the batch and what to divide by."""
        found, count = self.scores(numbers, codes), len(targets)
        if self.classifies:
            loss = F.cross_entropy(found, targets, label_smoothing=self.smoothing if self.training else 0.0)
            correct = (found.detach().argmax(1) == targets).sum()
            return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}
        away = found.squeeze(1) - targets
        loss = away.square().mean()
        with torch.no_grad():
            spread = (targets - self.center).square().sum()
            r2 = (spread - away.square().sum(), spread)
            mae = (away.abs().sum() * self.std, count)
        return loss, {"loss": (loss.detach() * count, count), "r2": r2, "mae": mae}


def build(cfg: ModelConfig, spec: Spec) -> MLP:
    """Make the network for such data, with fresh weights.

    Raises:
        UserError: labels are to be smoothed where there are none.
    """
    if cfg.label_smoothing and not spec.classes:
        cfg.refuse("label_smoothing", f"{spec.target} is a number and has no labels; use 0")
    return MLP(cfg, spec)
