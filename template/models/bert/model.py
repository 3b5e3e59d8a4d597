"""BERT (Devlin et al. 2019, arXiv:1810.04805) with a classifier on its first token.

This file is yours to edit. Training needs `ModelConfig` and `build`: see contracts.py.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, sized, within
from .data import Spec

SIZES: dict[str, dict[str, int]] = {
    "tiny": {},  # the defaults of ModelConfig
    "mini": {  # Turc et al. 2019, arXiv:1908.08962, table 1
        "depth": 4,
        "width": 256,
        "heads": 4,
    },
    "base": {  # section 3 of the paper
        "depth": 12,
        "width": 768,
        "heads": 12,
    },
    "large": {
        "depth": 24,
        "width": 1024,
        "heads": 16,
    },
}


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture, regularization and loss."""

    size: Literal["tiny", "mini", "base", "large"] = "tiny"
    """Size of the network, published ones except tiny; the options below override it."""
    depth: int = within("[1, 1000]", 2)
    """Number of blocks."""
    width: int = within("[1, inf)", 64)
    """Embedding dimension."""
    heads: int = within("[1, inf)", 2)
    """Number of attention heads of width / heads dimensions each."""
    positions: int = within("[0, inf)", 0)
    """Number of position embeddings, if more than data.length; 512 in published models."""
    dropout: float = within("[0, 1)", 0.1)
    """Dropout probability, of embeddings, each sublayer's output, attention weights and summary."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (8 * self.heads):
            why = f"it must divide model.width={self.width} into multiples of 8, for Tensor Cores"
            self.refuse("heads", why)


class Embeddings(nn.Module):
    """The sum of a token's, its position's and the first segment's embedding, normalized."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        width = cfg.width
        positions = max(cfg.positions, spec.length)
        self.word_embeddings = nn.Embedding(spec.vocabulary, width)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        t = tokens.shape[1]
        positions = self.position_embeddings.weight[:t]
        segment = self.token_type_embeddings.weight[0]
        x = self.word_embeddings(tokens) + (positions + segment)
        y: Tensor = self.drop(self.LayerNorm(x))
        return y


class Residual(nn.Module):
    """A linear layer whose output is added to the residual stream, which is then normalized."""

    def __init__(self, cfg: ModelConfig, inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, cfg.width)
        self.LayerNorm = nn.LayerNorm(cfg.width, eps=1e-12)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        added = self.drop(self.dense(hidden))
        y: Tensor = self.LayerNorm(added + x)
        return y


class Block(nn.Module):
    """Post-norm transformer block: self-attention among the tokens of a text, then an MLP."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        width = cfg.width
        self.heads = cfg.heads
        self.dropout = cfg.dropout
        qkv = nn.ModuleDict()
        for name in ("query", "key", "value"):
            qkv[name] = nn.Linear(width, width)
        self.attention = nn.ModuleDict({"self": qkv})
        self.attention["output"] = Residual(cfg, width)
        self.intermediate = nn.ModuleDict()
        self.intermediate["dense"] = nn.Linear(width, 4 * width)
        self.output = Residual(cfg, 4 * width)

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return what the heads read for each token, side by side."""
        parts = []
        for layer in self.attention["self"].children():
            part = layer(x).unflatten(2, (self.heads, -1))
            parts.append(part.transpose(1, 2))
        query, key, value = parts
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mixed = self.attend(x, mask)
        x = self.attention["output"](mixed, x)

        hidden = self.intermediate["dense"](x)
        y: Tensor = self.output(F.gelu(hidden), x)
        return y


class BERT(nn.Module):
    """Tokens (n, t) and a mask (n, t), which is true in the text, to class logits (n, classes).

    The names are those of transformers' BertForSequenceClassification, so that its checkpoints load
    as they are.
    """

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        width = cfg.width
        self.smoothing = cfg.label_smoothing
        self.bert = nn.ModuleDict()
        self.bert["embeddings"] = Embeddings(cfg, spec)
        layers = nn.ModuleList()
        for _ in range(cfg.depth):
            layers.append(Block(cfg))
        self.bert["encoder"] = nn.ModuleDict({"layer": layers})
        summary = nn.Linear(width, width)
        self.bert["pooler"] = nn.ModuleDict({"dense": summary})
        self.drop = nn.Dropout(cfg.dropout)
        self.classifier = nn.Linear(width, len(spec.classes))
        self.initialize(width)

    def initialize(self, width: int) -> None:
        """Initialize as BERT's code, whose 0.02 for width 768 is scaled to this width."""
        std = (3 * width) ** -0.5
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    @property
    def blocks(self) -> nn.Module:
        """The repeated layers, which have another name in checkpoints."""
        return self.bert.get_submodule("encoder.layer")

    def predict(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the class logits of texts; t is at most the number of positions."""
        x = self.bert["embeddings"](tokens)
        for block in self.blocks.children():
            x = block(x, mask[:, None, None])
        pooler = self.bert.get_submodule("pooler.dense")
        summary = pooler(x[:, 0]).tanh()
        logits: Tensor = self.classifier(self.drop(summary))
        return logits

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and each metric's sum over the batch with the number of texts."""
        logits = self.predict(tokens, mask)
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


def build(cfg: ModelConfig, spec: Spec) -> BERT:
    """Build the model for this data, with initialized weights."""
    return BERT(cfg, spec)
