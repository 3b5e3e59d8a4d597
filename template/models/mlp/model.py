"""A residual MLP for tables: Gorishniy et al. 2021 (arXiv:2106.11959), section 3.2.

This file is yours to edit. Training needs `ModelConfig` and `build`: see contracts.py.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, sized, within
from .data import Spec
from .errors import UserError

SIZES: dict[str, dict[str, int]] = {
    "small": {},  # the defaults of ModelConfig
    "wide": {
        "width": 512,
        "depth": 4,
        "embedding": 32,
    },
}
Metrics = dict[str, tuple[Tensor, Tensor | int]]
"""For each metric, its sum over the batch and the count to divide it by."""


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture, regularization and loss."""

    size: Literal["small", "wide"] = "small"
    """Size of the network; the options below override it."""
    width: int = within("[1, inf)", 64)
    """Width of the residual layers; the hidden layers inside are twice as wide."""
    depth: int = within("[1, 1000]", 2)
    """Number of blocks."""
    embedding: int = within("[1, inf)", 8)
    """Embedding dimension of categorical columns."""
    dropout: float = within("[0, 1)", 0.1)
    """Dropout probability, inside and at the end of each block."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""


class Block(nn.Module):
    """Pre-norm two-layer MLP with a residual connection."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.widen = nn.Linear(width, 2 * width)
        # without a bias, as the BatchNorm of the next block subtracts it
        self.narrow = nn.Linear(
            2 * width,
            width,
            bias=False,
        )
        self.drop = nn.Dropout(dropout)
        # He et al. 2015, arXiv:1502.01852
        nn.init.kaiming_normal_(self.widen.weight, nonlinearity="relu")
        nn.init.zeros_(self.widen.bias)
        # The block starts as the identity: Goyal et al. 2017, arXiv:1706.02677, section 5.1.
        nn.init.zeros_(self.narrow.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.widen(self.norm(x)))
        hidden = self.drop(hidden)
        y: Tensor = self.drop(self.narrow(hidden))
        return x + y


class MLP(nn.Module):
    """Numbers and indicators (n, columns), and codes (n, columns), to class logits or a number."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        width = cfg.width
        self.smoothing = cfg.label_smoothing
        self.classifies = len(spec.classes) > 0
        self.mean = spec.target_mean
        self.std = spec.target_std
        self.center = spec.center

        # one table for all columns, with an offset each: one kernel instead of one per column
        offsets = []
        rows = 0
        for names in spec.categories:
            offsets.append(rows)
            rows += 1 + len(names)
        first_rows = torch.tensor(offsets, dtype=torch.int64)
        self.offsets = nn.Buffer(first_rows, persistent=False)
        self.categories = None
        if spec.categories:
            self.categories = nn.Embedding(rows, cfg.embedding)

        inputs = len(spec.numeric) + len(offsets) * cfg.embedding
        self.padding = -inputs % 8  # for Tensor Cores
        self.stem = nn.Linear(
            inputs + self.padding,
            width,
            bias=False,
        )
        self.blocks = nn.ModuleList()
        for _ in range(cfg.depth):
            self.blocks.append(Block(width, cfg.dropout))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(
            width,
            len(spec.classes) or 1,
        )
        self.initialize()

    def initialize(self) -> None:
        """Let the first prediction be uniform, or the mean."""
        nn.init.kaiming_normal_(self.stem.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if self.categories is not None:
            table = self.categories.weight
            nn.init.normal_(table)  # the scale of the numbers
            with torch.no_grad():
                table[self.offsets] = 0.0  # unknown categories

    def logits(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Return class logits (n, classes), or the standardized target (n, 1)."""
        x = numbers
        if self.categories is not None:
            embedded = self.categories(codes + self.offsets)
            x = torch.cat([x, embedded.flatten(1)], dim=1)
        x = self.stem(F.pad(x, (0, self.padding)))
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.norm(x))

        # bf16 would round a predicted number to three digits
        with torch.autocast(x.device.type, enabled=False):
            logits: Tensor = self.head(x.to(self.head.weight.dtype))
        return logits

    def predict(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Return class logits (n, classes), or the target (n,) in its unit, for prepared rows."""
        logits = self.logits(numbers, codes)
        if self.classifies:
            return logits
        return logits.squeeze(1) * self.std + self.mean

    def forward(
        self,
        numbers: Tensor,
        codes: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, Metrics]:
        """Return the mean loss, and each metric's sum over the batch with its count."""
        if self.training and len(targets) == 1:
            raise UserError("a batch has 1 row: BatchNorm needs 2 or more, so raise batch_size")
        logits = self.logits(numbers, codes)
        if self.classifies:
            return self.classification(logits, targets)
        return self.regression(logits.squeeze(1), targets)

    def classification(
        self,
        logits: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, Metrics]:
        """Return the cross-entropy, and metrics."""
        loss = F.cross_entropy(
            logits,
            labels,
            label_smoothing=self.smoothing if self.training else 0.0,
        )

        count = len(labels)
        correct = (logits.argmax(1) == labels).sum()
        return loss, {
            "loss": (loss.detach() * count, count),
            "accuracy": (correct, count),
        }

    def regression(
        self,
        predicted: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, Metrics]:
        """Return the mean squared error, and metrics; `r2` is 1 - error / error of the mean."""
        error = predicted - targets
        loss = error.square().mean()

        count = len(targets)
        error = error.detach()
        variation = (targets - self.center).square().sum()
        explained = variation - error.square().sum()
        absolute = error.abs().sum() * self.std
        return loss, {
            "loss": (loss.detach() * count, count),
            "r2": (explained, variation),
            "mae": (absolute, count),
        }


def build(cfg: ModelConfig, spec: Spec) -> MLP:
    """Build the model for this data, with initialized weights.

    Raises:
        UserError: label smoothing is set for a numeric target.
    """
    if cfg.label_smoothing and not spec.classes:
        cfg.refuse("label_smoothing", "the target is numeric; use 0")
    return MLP(cfg, spec)
