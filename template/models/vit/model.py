"""A vision transformer: Dosovitskiy et al. 2021 (arXiv:2010.11929).

This file is yours to edit. Training needs `ModelConfig` and `build`: see contracts.py.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config_base import Section, sized, within
from .data import Spec

SIZES: dict[str, dict[str, int]] = {
    "tiny": {},  # the defaults of ModelConfig, for images of 8 to 32 pixels
    "Ti/16": {  # Touvron et al. 2021, arXiv:2012.12877, table 1
        "patch": 16,
        "depth": 12,
        "width": 192,
        "heads": 3,
    },
    "S/16": {
        "patch": 16,
        "depth": 12,
        "width": 384,
        "heads": 6,
    },
    "B/16": {  # table 1 of the paper
        "patch": 16,
        "depth": 12,
        "width": 768,
        "heads": 12,
    },
}


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture, regularization and loss."""

    size: Literal["tiny", "Ti/16", "S/16", "B/16"] = "tiny"
    """Size of the network; the options below override it."""
    patch: int = within("[1, inf)", 2)
    """Patch size in pixels; each patch is one token."""
    depth: int = within("[1, 1000]", 3)
    """Number of blocks."""
    width: int = within("[1, inf)", 64)
    """Embedding dimension."""
    heads: int = within("[1, inf)", 2)
    """Number of attention heads of width / heads dimensions each."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability, after the position embedding and in each block: the paper's B.1."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (8 * self.heads):
            why = f"it must divide model.width={self.width} into multiples of 8, for Tensor Cores"
            self.refuse("heads", why)


class Block(nn.Module):
    """Pre-norm transformer block: self-attention, then an MLP, each with a residual connection."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        width = cfg.width
        self.heads = cfg.heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        # queries, keys and values in one matrix product
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(cfg.dropout)

    def attend(self, x: Tensor) -> Tensor:
        """Return what the heads read for each token, side by side."""
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attend(self.norm1(x))
        x = x + self.drop(self.out(mixed))

        hidden = F.gelu(self.widen(self.norm2(x)))
        hidden = self.drop(hidden)
        y: Tensor = self.drop(self.narrow(hidden))
        return x + y


class ViT(nn.Module):
    """Images (n, channels, size, size) to class logits (n, classes)."""

    no_weight_decay = ("summary", "positions")

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        width = cfg.width
        patch = cfg.patch
        patches = (spec.size // patch) ** 2
        self.smoothing = cfg.label_smoothing
        self.cut = nn.Conv2d(
            spec.channels,
            width,
            kernel_size=patch,
            stride=patch,
        )
        # the class token, which the head reads
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, patches + 1, width))
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList()
        for _ in range(cfg.depth):
            self.blocks.append(Block(cfg))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, len(spec.classes))
        self.initialize()

    def initialize(self) -> None:
        """Initialize as the paper's code, google-research/vision_transformer, but the positions.

        With its standard deviation of 0.02 for these, small next to the patch embeddings, a small
        model took epochs to distinguish positions. The sine and cosine embeddings of Beyer et al.
        2022 (arXiv:2205.01580) have this scale.
        """
        nn.init.normal_(self.positions, std=0.5)
        pixels = self.cut.weight[0].numel()
        nn.init.normal_(
            self.cut.weight,
            std=pixels**-0.5,
        )
        for name, parameter in self.blocks.named_parameters():
            if name.endswith("qkv.weight"):  # queries, keys and values one by one
                for part in parameter.chunk(3):
                    nn.init.xavier_uniform_(part)
            elif parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.zeros_(self.cut.get_parameter("bias"))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def predict(self, images: Tensor) -> Tensor:
        """Return the class logits of prepared images."""
        patches = self.cut(images).flatten(2).transpose(1, 2)
        summary = self.summary.expand(images.shape[0], -1, -1)  # no len(): for torch.export
        x = torch.cat([summary.to(patches.dtype), patches], dim=1)
        x = self.drop(x + self.positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and each metric's sum over the batch with the number of samples."""
        logits = self.predict(images)
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


def build(cfg: ModelConfig, spec: Spec) -> ViT:
    """Build the model for this data, with initialized weights."""
    if spec.size % cfg.patch:
        cfg.refuse("patch", f"it must divide the image size of {spec.size} pixels")
    return ViT(cfg, spec)
