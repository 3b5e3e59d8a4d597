"""A decoder-only transformer: Radford et al. 2019, GPT-2.

This file is yours to edit; train.py uses `build`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec

SIZES: dict[str, dict[str, object]] = {
    "tiny": {"depth": 2, "width": 80, "heads": 2, "positions": "rotary"},
    "124M": {
        "depth": 12,
        "width": 768,
        "heads": 12,
        "positions": "learned",
    },  # GPT-2, table 2 of its paper
    "355M": {"depth": 24, "width": 1024, "heads": 16, "positions": "learned"},
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and regularization."""

    size: Literal["tiny", "124M", "355M"] = "tiny"
    """Size of the network, the larger ones GPT-2's; the options below override it."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks. 0: set by `size`."""
    width: int = within("[0, inf)", 0)
    """Embedding dimension. 0: set by `size`."""
    heads: int = within("[0, inf)", 0)
    """Number of attention heads of width / heads dimensions each. 0: set by `size`."""
    positions: Literal["auto", "rotary", "learned"] = "auto"
    """Position embedding: rotary (Su et al. 2021, arXiv:2104.09864), or learned as in GPT-2.

    auto: set by `size`.
    """
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability; not needed for less than one epoch."""

    def __post_init__(self) -> None:
        self.apply_size(SIZES[self.size])
        super().__post_init__()
        if self.width % self.heads or self.width // self.heads % 8:
            self.refuse(
                "heads",
                f"it must divide model.width={self.width} into multiples of 8, for Tensor Cores",
            )


class Rotary(nn.Module):
    """Rotary position embedding: attention logits depend on relative positions."""

    def __init__(self, dimensions: int, context: int) -> None:
        super().__init__()
        frequencies = 10000.0 ** -(torch.arange(0, dimensions, 2) / dimensions)
        angles = torch.outer(torch.arange(context), frequencies)
        self.cosine = nn.Buffer(angles.cos(), persistent=False)
        self.sine = nn.Buffer(angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        cosine, sine = self.cosine[: x.shape[-2]], self.sine[: x.shape[-2]]
        left, right = x.chunk(2, dim=-1)
        rotated: Tensor = torch.cat(
            [left * cosine - right * sine, left * sine + right * cosine], dim=-1
        )
        # the buffers are fp32, but queries and keys may not be, under autocast
        return rotated.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention, with queries, keys and values in one matrix product."""

    def __init__(self, cfg: ModelConfig, context: int) -> None:
        super().__init__()
        self.heads, self.dropout = cfg.heads, cfg.dropout
        rotary = cfg.positions == "rotary"
        self.rotate = Rotary(cfg.width // cfg.heads, context) if rotary else nn.Identity()
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        dropped = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            self.rotate(q), self.rotate(k), v, dropout_p=dropped, is_causal=True
        )
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(n, t, d))
        return mixed


class Block(nn.Module):
    """Pre-norm transformer block: attention, then an MLP, each with a residual connection."""

    def __init__(self, cfg: ModelConfig, context: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(cfg.width)
        self.attention = Attention(cfg, context)
        self.norm2 = nn.LayerNorm(cfg.width)
        self.widen = nn.Linear(cfg.width, 4 * cfg.width)
        self.narrow = nn.Linear(4 * cfg.width, cfg.width)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        hidden = F.gelu(self.widen(self.norm2(x)), approximate="tanh")
        added: Tensor = self.drop(self.narrow(hidden))
        return x + added


class GPT(nn.Module):
    """Tokens (n, t) to next-token logits (n, t, vocabulary)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.vocabulary, self.bytes_per_token = spec.vocabulary, spec.bytes_per_token
        # Padded to a multiple of 64 for fast matrix products; the logits of the last rows are never
        # used.
        rows = -(-spec.vocabulary // 64) * 64
        self.tokens = nn.Embedding(rows, cfg.width)
        self.positions = (
            nn.Embedding(spec.context, cfg.width) if cfg.positions == "learned" else None
        )
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg, spec.context) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, rows, bias=False)
        self.head.weight = self.tokens.weight  # tied: Press and Wolf 2016, arXiv:1608.05859
        # As GPT-2 (section 2.3), with its standard deviation of 0.02 for width 768 scaled to this
        # width.
        std = (3 * cfg.width) ** -0.5
        for name, parameter in self.named_parameters():
            if name.endswith(
                ("out.weight", "narrow.weight")
            ):  # keeps the residual stream's variance
                nn.init.normal_(parameter, std=std / math.sqrt(2 * cfg.depth))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def predict(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each of the (n, t) positions; t is at most the context length."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits[..., : self.vocabulary]

    def forward(
        self, tokens: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, float]]]:
        """Return the mean loss in nats, and for each metric its sum over the batch and the count of tokens or bytes."""
        loss = F.cross_entropy(self.predict(tokens).flatten(0, 1), targets.flatten())
        count = targets.numel()
        nats = loss.detach() * count
        return loss, {
            "loss": (nats, count),
            "bits_per_byte": (nats / math.log(2), count * self.bytes_per_token),
        }


def build(cfg: ModelConfig, spec: Spec) -> GPT:
    """Build the model for this data, with initialized weights."""
    return GPT(cfg, spec)
