"""A residual MLP for tables: Gorishniy et al. 2021 (arXiv:2106.11959), section 3.2.

This file is yours to edit.
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
    """Architecture, regularization and loss."""

    size: Literal["small", "wide"] = "small"
    """Model size: sets the defaults of the fields below, which can be overridden one by one."""
    width: int = within("[0, inf)", 0)
    """Width of the residual layers; the hidden layers inside are twice as wide.

    0: set by `size`.
    """
    depth: int = within("[0, 1000]", 0)
    """Number of blocks. 0: set by `size`."""
    embedding: int = within("[0, inf)", 0)
    """Embedding dimension of categorical columns. 0: set by `size`."""
    dropout: float = within("[0, 1)", 0.1)
    """Dropout probability, inside and at the end of each block."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.apply_size(SIZES[self.size])
        super().__post_init__()


class Block(nn.Module):
    """Pre-norm two-layer MLP with a residual connection."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width, bias=False)  # BatchNorm follows in the next block
        self.drop = nn.Dropout(dropout)
        # He et al. 2015, arXiv:1502.01852. Each block is initialized as the identity:
        # arXiv:1706.02677, section 5.1.
        nn.init.kaiming_normal_(self.widen.weight, nonlinearity="relu")
        nn.init.zeros_(self.widen.bias)
        nn.init.zeros_(self.narrow.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(F.relu(self.widen(self.norm(x))))
        added: Tensor = self.drop(self.narrow(hidden))
        return x + added


class MLP(nn.Module):
    """Numbers (n, numeric and indicator columns) and codes (n, categorical columns) to class logits, or to a number."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing, self.classifies = cfg.label_smoothing, bool(spec.classes)
        self.mean, self.std, self.center = spec.target_mean, spec.target_std, spec.center
        starts = [0, *accumulate(1 + len(names) for names in spec.categories.values())]
        self.offsets = nn.Buffer(torch.tensor(starts[:-1], dtype=torch.int64), persistent=False)
        # One embedding for all columns, with an offset per column: one kernel instead of one per
        # column.
        self.categories = nn.Embedding(starts[-1], cfg.embedding) if spec.categories else None
        inputs = len(spec.numeric) + len(spec.categories) * cfg.embedding
        self.padding = -inputs % 8
        self.stem = nn.Linear(inputs + self.padding, cfg.width, bias=False)
        self.blocks = nn.ModuleList(Block(cfg.width, cfg.dropout) for _ in range(cfg.depth))
        self.norm = nn.BatchNorm1d(cfg.width)
        self.head = nn.Linear(cfg.width, len(spec.classes) or 1)
        nn.init.kaiming_normal_(self.stem.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.weight)  # so that the first prediction is uniform, or the mean
        nn.init.zeros_(self.head.bias)
        if self.categories is not None:
            # scale of the numbers; but zero for unknown categories
            nn.init.normal_(self.categories.weight)
            with torch.no_grad():
                self.categories.weight[self.offsets] = 0.0

    def logits(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Class logits (n, classes), or the standardized target (n, 1)."""
        x = numbers
        if self.categories is not None:
            x = torch.cat([x, self.categories(codes + self.offsets).flatten(1)], dim=1)
        x = self.stem(F.pad(x, (0, self.padding)))
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.norm(x))
        with torch.autocast(
            x.device.type, enabled=False
        ):  # bf16 would round a predicted number to three digits
            found: Tensor = self.head(x.to(self.head.weight.dtype))
        return found

    def predict(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Class logits (n, classes), or the target (n,) in its original unit, for prepared rows."""
        found = self.logits(numbers, codes)
        return found if self.classifies else found.squeeze(1) * self.std + self.mean

    def forward(
        self, numbers: Tensor, codes: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor | int]]]:
        """Return the mean loss, and for each metric its sum over the batch and the count to divide by."""
        found, count = self.logits(numbers, codes), len(targets)
        if self.classifies:
            loss = F.cross_entropy(
                found, targets, label_smoothing=self.smoothing if self.training else 0.0
            )
            correct = (found.detach().argmax(1) == targets).sum()
            return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}
        error = found.squeeze(1) - targets
        loss = error.square().mean()
        with torch.no_grad():
            total = (targets - self.center).square().sum()
            r2 = (total - error.square().sum(), total)
            mae = (error.abs().sum() * self.std, count)
        return loss, {"loss": (loss.detach() * count, count), "r2": r2, "mae": mae}


def build(cfg: ModelConfig, spec: Spec) -> MLP:
    """Build the model for this data, with initialized weights.

    Raises:
        UserError: label smoothing is set for a numeric target.
    """
    if cfg.label_smoothing and not spec.classes:
        cfg.refuse("label_smoothing", "the target is numeric; use 0")
    return MLP(cfg, spec)
