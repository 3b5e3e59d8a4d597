"""A vision transformer (Dosovitskiy et al.

2021, arXiv:2010.11929): Ti/16, S/16 and B/16, and one for small images.

This file is yours to edit. train.py uses `ModelConfig` and `build`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config_base import Section, within
from .data import Spec

SIZES: dict[str, dict[str, object]] = {
    "tiny": {"patch": 2, "depth": 3, "width": 64, "heads": 2},  # for images of 8 to 32 pixels
    "Ti/16": {
        "patch": 16,
        "depth": 12,
        "width": 192,
        "heads": 3,
    },  # Touvron et al. 2021, arXiv:2012.12877, table 1
    "S/16": {"patch": 16, "depth": 12, "width": 384, "heads": 6},
    "B/16": {"patch": 16, "depth": 12, "width": 768, "heads": 12},  # table 1 of the paper
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture, regularization and loss."""

    size: Literal["tiny", "Ti/16", "S/16", "B/16"] = "tiny"
    """Model size: sets the defaults of the fields below, which can be overridden one by one."""
    patch: int = within("[0, inf)", 0)
    """Patch size in pixels; each patch is one token. 0: set by `size`."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks. 0: set by `size`."""
    width: int = within("[0, inf)", 0)
    """Embedding dimension. 0: set by `size`."""
    heads: int = within("[0, inf)", 0)
    """Number of attention heads of width / heads dimensions each. 0: set by `size`."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability, after the position embedding and in each block (appendix B.1 of the paper)."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.apply_size(SIZES[self.size])
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")
        if self.width % self.heads or self.width // self.heads % 8:
            self.refuse("heads", f"it must divide model.width={self.width} into multiples of 8")


class Block(nn.Module):
    """Pre-norm transformer block: self-attention, then an MLP, each with a residual connection."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.heads = cfg.heads
        self.norm1 = nn.LayerNorm(cfg.width, eps=1e-6)
        # queries, keys and values in one matrix product
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)
        self.norm2 = nn.LayerNorm(cfg.width, eps=1e-6)
        self.widen = nn.Linear(cfg.width, 4 * cfg.width)
        self.narrow = nn.Linear(4 * cfg.width, cfg.width)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(n, t, 3, self.heads, d // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + self.drop(self.out(mixed))
        hidden = self.drop(F.gelu(self.widen(self.norm2(x))))
        added: Tensor = self.drop(self.narrow(hidden))
        return x + added


class ViT(nn.Module):
    """Images (n, channels, size, size) to class logits (n, classes)."""

    no_weight_decay = ("summary", "positions")

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing = cfg.label_smoothing
        self.cut = nn.Conv2d(spec.channels, cfg.width, cfg.patch, stride=cfg.patch)
        # the class token, which the head reads
        self.summary = nn.Parameter(torch.zeros(1, 1, cfg.width))
        self.positions = nn.Parameter(torch.empty(1, (spec.size // cfg.patch) ** 2 + 1, cfg.width))
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width, eps=1e-6)
        self.head = nn.Linear(cfg.width, len(spec.classes))
        self._init()

    def _init(self) -> None:
        """Initialize as the code of the paper, google-research/vision_transformer, except for the positions.

        With its standard deviation of 0.02 for these, small next to the patch embeddings, a small
        model took epochs to distinguish positions. The sine and cosine embeddings of Beyer et al.
        2022 (arXiv:2205.01580) have this scale.
        """
        nn.init.normal_(self.positions, std=0.5)
        nn.init.normal_(self.cut.weight, std=self.cut.weight[0].numel() ** -0.5)
        for name, parameter in self.blocks.named_parameters():
            if parameter.ndim == 2:  # queries, keys and values are initialized separately
                for part in parameter.chunk(3 if name.endswith("qkv.weight") else 1):
                    nn.init.xavier_uniform_(part)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        for zero in (self.cut.get_parameter("bias"), self.head.weight, self.head.bias):
            nn.init.zeros_(zero)

    def predict(self, images: Tensor) -> Tensor:
        """Class logits of prepared images."""
        patches = self.cut(images).flatten(2).transpose(1, 2)
        x = torch.cat(
            [self.summary.expand(images.shape[0], -1, -1).to(patches.dtype), patches], dim=1
        )
        x = self.drop(x + self.positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits

    def forward(
        self, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and for each metric its sum over the batch and the number of samples."""
        logits = self.predict(images)
        loss = F.cross_entropy(
            logits, labels, label_smoothing=self.smoothing if self.training else 0.0
        )
        correct = (logits.detach().argmax(1) == labels).sum()
        count = len(labels)
        return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}


def build(cfg: ModelConfig, spec: Spec) -> ViT:
    """Build the model for this data, with initialized weights."""
    if spec.size % cfg.patch:
        cfg.refuse("patch", f"it must divide the image size of {spec.size} pixels")
    return ViT(cfg, spec)
