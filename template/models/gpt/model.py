"""A decoder-only transformer (Radford et al. 2019, GPT-2), with fused attention.

Yours to change. The rest of the project needs `ModelConfig`, `build`, and a `forward` that returns the loss and sums.
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
    "124M": {"depth": 12, "width": 768, "heads": 12, "positions": "learned"},  # GPT-2, table 2 of its paper
    "355M": {"depth": 24, "width": 1024, "heads": 16, "positions": "learned"},
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network's size, and its loss."""

    size: Literal["tiny", "124M", "355M"] = "tiny"
    """The network's size, the larger ones GPT-2's; a value given below goes before it."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks. 0: as `size` says."""
    width: int = within("[0, inf)", 0)
    """Size of the residual stream. 0: as `size` says."""
    heads: int = within("[0, inf)", 0)
    """Attention heads; each has width / heads dimensions. 0: as `size` says."""
    positions: Literal["auto", "rotary", "learned"] = "auto"
    """How a token's place enters: rotary, Su et al. 2021, arXiv:2104.09864; learned and added, as in GPT-2. auto: as
    `size` says."""
    dropout: float = within("[0, 1)", 0.0)
    """Share of activations dropped in training; below one pass over the data none is needed."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Share of each label that training spreads over all tokens: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, which Tensor Cores need")
        if self.width % self.heads or self.width // self.heads % 8:
            self.refuse("heads", f"it must divide model.width={self.width} into multiples of 8")


class Rotary(nn.Module):
    """Turns each pair of a head's dimensions by an angle that grows with the place, so that products see distances."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, dimensions: int, context: int) -> None:
        super().__init__()
        frequencies = 10000.0 ** -(torch.arange(0, dimensions, 2) / dimensions)
        angles = torch.outer(torch.arange(context), frequencies)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        cosine, sine = self.cosine[: x.shape[-2]], self.sine[: x.shape[-2]]
        left, right = x.chunk(2, dim=-1)
        turned: Tensor = torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)
        return turned.to(x.dtype)  # the table is fp32; under autocast the queries are not


class Attention(nn.Module):
    """Causal self-attention with queries, keys and values from one matrix product."""

    def __init__(self, cfg: ModelConfig, context: int) -> None:
        super().__init__()
        self.heads, self.dropout = cfg.heads, cfg.dropout
        rotary = cfg.positions == "rotary"
        self.place = Rotary(cfg.width // cfg.heads, context) if rotary else nn.Identity()
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        dropped = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(self.place(q), self.place(k), v, dropout_p=dropped, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(n, t, d))
        return mixed


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each on a normalised copy and added back."""

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
    """Tokens (n, t) to scores of the next token (n, t, vocabulary)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing, self.vocabulary, self.bytes_per_token = (
            cfg.label_smoothing,
            spec.vocabulary,
            spec.bytes_per_token,
        )
        # Rows up to a multiple of 64, as matrix units like; no token has the last ones, so training drives them down.
        rows = -(-spec.vocabulary // 64) * 64
        self.tokens = nn.Embedding(rows, cfg.width)
        self.positions = nn.Embedding(spec.context, cfg.width) if cfg.positions == "learned" else None
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg, spec.context) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, rows, bias=False)
        self.head.weight = self.tokens.weight  # tied: Press and Wolf 2016, arXiv:1608.05859
        self._init(cfg)

    def _init(self, cfg: ModelConfig) -> None:
        """Fill the weights as GPT-2 does (section 2.3), with its 0.02, meant for a width of 768, made to fit any."""
        std = (3 * cfg.width) ** -0.5
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "narrow.weight")):  # so that the residual stream keeps its scale
                nn.init.normal_(parameter, std=std / math.sqrt(2 * cfg.depth))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def _scores(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores

    def predict(self, tokens: Tensor) -> Tensor:
        """Scores, before softmax, of the token that follows each of the (n, t) tokens; t at most the context."""
        return self._scores(tokens)[..., : self.vocabulary]

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, float]]]:
        """Return the mean loss in nats, and for each metric its sum over the batch and the count of tokens or bytes."""
        scores = self._scores(tokens)
        smoothing = self.smoothing if self.training else 0.0
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
        count = targets.numel()
        nats = loss.detach() * count
        return loss, {"loss": (nats, count), "bits_per_byte": (nats / math.log(2), count * self.bytes_per_token)}


def build(cfg: ModelConfig, spec: Spec) -> GPT:
    """Make the network for such data, with fresh weights."""
    return GPT(cfg, spec)
