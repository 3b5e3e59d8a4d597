"""A decoder-only transformer: GPT-2 (Radford et al. 2019).

This file is yours to edit. Training needs `ModelConfig` and `build`: see contracts.py.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .config_base import Section, sized, within
from .data import Spec

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},  # the defaults of ModelConfig
    "124M": {  # these are GPT-2's: table 2 of the paper
        "depth": 12,
        "width": 768,
        "heads": 12,
        "positions": "learned",
    },
    "355M": {
        "depth": 24,
        "width": 1024,
        "heads": 16,
        "positions": "learned",
    },
}


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and regularization."""

    size: Literal["tiny", "124M", "355M"] = "tiny"
    """Size of the network, the larger ones GPT-2's; the options below override it."""
    depth: int = within("[1, 1000]", 2)
    """Number of blocks."""
    width: int = within("[1, inf)", 80)
    """Embedding dimension."""
    heads: int = within("[1, inf)", 2)
    """Number of attention heads of width / heads dimensions each."""
    positions: Literal["rotary", "learned"] = "rotary"
    """Position embedding: rotary (Su et al. 2021, arXiv:2104.09864), or learned as in GPT-2."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability; not needed for less than one epoch."""
    loss_chunks: int = within("[1, 1024]", 1)
    """Number of parts in which logits and loss are computed, and then again for the gradients. So
    the logits of a large vocabulary need a part of the memory; they take a third more time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (8 * self.heads):
            why = f"it must divide model.width={self.width} into multiples of 8, for Tensor Cores"
            self.refuse("heads", why)


class Rotary(nn.Module):
    """Rotary position embedding: attention logits depend on relative positions."""

    def __init__(self, dimensions: int, context: int) -> None:
        super().__init__()
        frequencies = 10000.0 ** -(torch.arange(0, dimensions, 2) / dimensions)
        angles = torch.outer(torch.arange(context), frequencies)
        self.cosine = nn.Buffer(angles.cos(), persistent=False)
        self.sine = nn.Buffer(angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        cosine = self.cosine[:length]
        sine = self.sine[:length]
        left, right = x.chunk(2, dim=-1)
        rotated = torch.cat(
            [
                left * cosine - right * sine,
                left * sine + right * cosine,
            ],
            dim=-1,
        )
        # the buffers are fp32, but queries and keys may not be, under autocast
        return rotated.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention, with queries, keys and values in one matrix product."""

    def __init__(self, cfg: ModelConfig, context: int) -> None:
        super().__init__()
        width = cfg.width
        self.heads = cfg.heads
        self.dropout = cfg.dropout
        self.rotate: nn.Module = nn.Identity()
        if cfg.positions == "rotary":
            self.rotate = Rotary(width // cfg.heads, context)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            self.rotate(q),
            self.rotate(k),
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        heads = mixed.transpose(1, 2)
        y: Tensor = self.out(heads.flatten(2))
        return y


class Block(nn.Module):
    """Pre-norm transformer block: attention, then an MLP, each with a residual connection."""

    def __init__(self, cfg: ModelConfig, context: int) -> None:
        super().__init__()
        width = cfg.width
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(cfg, context)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention(self.norm1(x))
        x = x + self.drop(mixed)

        hidden = self.widen(self.norm2(x))
        hidden = F.gelu(hidden, approximate="tanh")
        y: Tensor = self.drop(self.narrow(hidden))
        return x + y


class GPT(nn.Module):
    """Tokens (n, t) to next-token logits (n, t, vocabulary)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.loss_chunks = cfg.loss_chunks
        self.vocabulary = spec.vocabulary
        self.bytes_per_token = spec.bytes_per_token
        width = cfg.width
        context = spec.context
        # A multiple of 64 makes the matrix products fast; the logits of the last rows are not used.
        rows = 64 * math.ceil(spec.vocabulary / 64)

        self.tokens = nn.Embedding(rows, width)
        self.positions = None
        if cfg.positions == "learned":
            self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList()
        for _ in range(cfg.depth):
            self.blocks.append(Block(cfg, context))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(
            width,
            rows,
            bias=False,
        )
        self.head.weight = self.tokens.weight  # tied: Press and Wolf 2016, arXiv:1608.05859
        self.initialize(cfg)

    def initialize(self, cfg: ModelConfig) -> None:
        """Initialize as GPT-2 (section 2.3), whose 0.02 for width 768 is scaled to this width."""
        std = (3 * cfg.width) ** -0.5
        # keeps the variance of the residual stream, which is the sum of all layers' outputs
        residual_std = std / math.sqrt(2 * cfg.depth)
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "narrow.weight")):
                nn.init.normal_(parameter, std=residual_std)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def states(self, tokens: Tensor) -> Tensor:
        """Return the normalized states (n, t, width) of the last block."""
        x = self.tokens(tokens)
        if self.positions is not None:
            t = tokens.shape[1]
            numbers = torch.arange(t, device=tokens.device)
            x = x + self.positions(numbers)
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.norm(x)
        return y

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of the next token after each state."""
        y: Tensor = self.head(states)
        return y[..., : self.vocabulary]

    def predict(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position; t is at most the context length."""
        return self.logits(self.states(tokens))

    def loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss in nats of states (n, width) and targets (n,)."""
        return F.cross_entropy(self.logits(states), targets)

    def loss_in_chunks(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return `loss`, without keeping the logits of all tokens at once."""
        loss = states.new_zeros(())
        parts = zip(
            states.chunk(self.loss_chunks),
            targets.chunk(self.loss_chunks),
            strict=True,
        )
        for part, part_targets in parts:
            mean = checkpoint(
                self.loss,
                part,
                part_targets,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            loss = loss + mean * (len(part) / len(states))
        return loss

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, float]]]:
        """Return the mean loss in nats, and each metric's sum with its count of tokens or bytes."""
        states = self.states(tokens).flatten(0, 1)
        compute = self.loss if self.loss_chunks == 1 else self.loss_in_chunks
        loss = compute(states, targets.flatten())

        count = targets.numel()
        nats = loss.detach() * count
        bits = nats / math.log(2)
        return loss, {
            "loss": (nats, count),
            "bits_per_byte": (bits, count * self.bytes_per_token),
        }


def build(cfg: ModelConfig, spec: Spec) -> GPT:
    """Build the model for this data, with initialized weights."""
    return GPT(cfg, spec)
