"""A vision transformer (Dosovitskiy et al. 2021, arXiv:2010.11929): Ti/16, S/16 and B/16, and one for small pictures.

Yours to change. The rest of the project needs `ModelConfig`, `build`, and a `forward` that returns the loss and sums.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec

SIZES: dict[str, dict[str, object]] = {
    "tiny": {"patch": 2, "depth": 3, "width": 64, "heads": 2},  # for pictures of 8 to 32 pixels
    "Ti/16": {"patch": 16, "depth": 12, "width": 192, "heads": 3},  # Touvron et al. 2021, arXiv:2012.12877, table 1
    "S/16": {"patch": 16, "depth": 12, "width": 384, "heads": 6},
    "B/16": {"patch": 16, "depth": 12, "width": 768, "heads": 12},  # table 1 of the paper
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network's size, and its loss."""

    size: Literal["tiny", "Ti/16", "S/16", "B/16"] = "tiny"
    """The network's size; a value given below goes before it."""
    patch: int = within("[0, inf)", 0)
    """Side, in pixels, of the squares that an image is cut into, a token each. 0: as `size` says."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks. 0: as `size` says."""
    width: int = within("[0, inf)", 0)
    """Size of the residual stream. 0: as `size` says."""
    heads: int = within("[0, inf)", 0)
    """Attention heads; each has width / heads dimensions. 0: as `size` says."""
    dropout: float = within("[0, 1)", 0.0)
    """Share of activations dropped in training, after the positions and in each block (the paper's appendix B.1)."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Share of each label that training spreads over all classes: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, which Tensor Cores need")
        if self.width % self.heads or self.width // self.heads % 8:
            self.refuse("heads", f"it must divide model.width={self.width} into multiples of 8")


class Block(nn.Module):
    """Attention of all tokens to all, then a two-layer perceptron, each on a normalised copy and added back."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.heads = cfg.heads
        self.norm1 = nn.LayerNorm(cfg.width, eps=1e-6)
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)  # queries, keys and values from one matrix product
        self.out = nn.Linear(cfg.width, cfg.width)
        self.norm2 = nn.LayerNorm(cfg.width, eps=1e-6)
        self.widen = nn.Linear(cfg.width, 4 * cfg.width)
        self.narrow = nn.Linear(4 * cfg.width, cfg.width)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + self.drop(self.out(mixed))
        hidden = self.drop(F.gelu(self.widen(self.norm2(x))))
        added: Tensor = self.drop(self.narrow(hidden))
        return x + added


class ViT(nn.Module):
    """Images (n, channels, size, size) to class scores (n, classes)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing = cfg.label_smoothing
        self.cut = nn.Conv2d(spec.channels, cfg.width, cfg.patch, stride=cfg.patch)
        self.summary = nn.Parameter(torch.zeros(1, 1, cfg.width))  # the class token, from which the classes are read
        self.positions = nn.Parameter(torch.empty(1, (spec.size // cfg.patch) ** 2 + 1, cfg.width))
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width, eps=1e-6)
        self.head = nn.Linear(cfg.width, len(spec.classes))
        self._init()

    def _init(self) -> None:
        """Fill the weights as the paper's own code, google-research/vision_transformer, does, but for the positions.

        Its 0.02 for these hardly shows beside patches of size 1: a small network took epochs to tell places apart. The
        sines and cosines of Beyer et al. 2022 (arXiv:2205.01580) are of this size too.
        """
        nn.init.normal_(self.positions, std=0.5)
        nn.init.normal_(self.cut.weight, std=self.cut.weight[0].numel() ** -0.5)
        for name, parameter in self.blocks.named_parameters():
            if parameter.ndim == 2:  # of the fused matrix each third by itself
                for part in parameter.chunk(3 if name.endswith("qkv.weight") else 1):
                    nn.init.xavier_uniform_(part)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        for zero in (self.cut.get_parameter("bias"), self.head.weight, self.head.bias):
            nn.init.zeros_(zero)

    def predict(self, images: Tensor) -> Tensor:
        """Class scores, before softmax, of prepared images."""
        patches = self.cut(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.summary.expand(images.shape[0], -1, -1).to(patches.dtype), patches], dim=1)
        x = self.drop(x + self.positions)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x[:, 0]))
        return scores

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and for each metric its sum over the batch and the number of samples."""
        scores = self.predict(images)
        loss = F.cross_entropy(scores, labels, label_smoothing=self.smoothing if self.training else 0.0)
        with torch.no_grad():
            correct = (scores.argmax(1) == labels).sum()
        count = len(labels)
        return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}


def build(cfg: ModelConfig, spec: Spec) -> ViT:
    """Make the network for such data, with fresh weights.

    Raises:
        UserError: the images cannot be cut into whole patches.
    """
    if spec.size % cfg.patch:
        cfg.refuse("patch", f"it must divide the images' side of {spec.size} pixels")
    return ViT(cfg, spec)
