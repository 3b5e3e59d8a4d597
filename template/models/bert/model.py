"""BERT (Devlin et al. 2019, arXiv:1810.04805) with a classifier on its first token.

This file is yours to edit.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec

SIZES: dict[str, dict[str, object]] = {
    "tiny": {"depth": 2, "width": 64, "heads": 2},
    "mini": {"depth": 4, "width": 256, "heads": 4},  # Turc et al. 2019, arXiv:1908.08962, table 1
    "base": {"depth": 12, "width": 768, "heads": 12},  # section 3 of the paper
    "large": {"depth": 24, "width": 1024, "heads": 16},
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture, regularization and loss."""

    size: Literal["tiny", "mini", "base", "large"] = "tiny"
    """Size of the network, published ones except tiny; the options below override it."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks. 0: set by `size`."""
    width: int = within("[0, inf)", 0)
    """Embedding dimension. 0: set by `size`."""
    heads: int = within("[0, inf)", 0)
    """Number of attention heads of width / heads dimensions each. 0: set by `size`."""
    positions: int = within("[0, inf)", 0)
    """Number of position embeddings, if more than data.length; 512 in published models."""
    dropout: float = within("[0, 1)", 0.1)
    """Dropout probability, of embeddings, attention weights, each sublayer's output and the classifier's input."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.apply_size(SIZES[self.size])
        super().__post_init__()
        if self.width % self.heads or self.width // self.heads % 8:
            self.refuse(
                "heads",
                f"it must divide model.width={self.width} into multiples of 8, for Tensor Cores",
            )


class Embeddings(nn.Module):
    """The sum of a token's, its position's and its segment's embedding; all tokens are of the first segment."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(spec.vocabulary, cfg.width)
        self.position_embeddings = nn.Embedding(max(cfg.positions, spec.length), cfg.width)
        self.token_type_embeddings = nn.Embedding(2, cfg.width)
        self.LayerNorm = nn.LayerNorm(cfg.width, eps=1e-12)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        places = (
            self.position_embeddings.weight[: tokens.shape[1]]
            + self.token_type_embeddings.weight[0]
        )
        embedded: Tensor = self.drop(self.LayerNorm(self.word_embeddings(tokens) + places))
        return embedded


class Residual(nn.Module):
    """A linear layer whose output is added to the residual stream, and the sum normalized (post-norm)."""

    def __init__(self, cfg: ModelConfig, inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, cfg.width)
        self.LayerNorm = nn.LayerNorm(cfg.width, eps=1e-12)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        normalized: Tensor = self.LayerNorm(self.drop(self.dense(hidden)) + x)
        return normalized


class Block(nn.Module):
    """Transformer block: self-attention among the tokens of a text, then an MLP."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = cfg.heads, cfg.dropout
        qkv = nn.ModuleDict(
            {name: nn.Linear(cfg.width, cfg.width) for name in ("query", "key", "value")}
        )
        self.attention = nn.ModuleDict({"self": qkv, "output": Residual(cfg, cfg.width)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(cfg.width, 4 * cfg.width)})
        self.output = Residual(cfg, 4 * cfg.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, t, d = x.shape
        qkv = self.attention["self"].children()
        q, k, v = (part(x).view(n, t, self.heads, d // self.heads).transpose(1, 2) for part in qkv)
        mixed = F.scaled_dot_product_attention(
            q, k, v, mask, self.dropout if self.training else 0.0
        )
        x = self.attention["output"](mixed.transpose(1, 2).reshape(n, t, d), x)
        output: Tensor = self.output(F.gelu(self.intermediate["dense"](x)), x)
        return output


class BERT(nn.Module):
    """Tokens (n, t), of which those with a true mask (n, t) are a text, to class logits (n, classes)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing = cfg.label_smoothing
        # The names are those of transformers' BertForSequenceClassification, so that its
        # checkpoints load as they are.
        self.bert = nn.ModuleDict({"embeddings": Embeddings(cfg, spec)})
        self.bert["encoder"] = nn.ModuleDict(
            {"layer": nn.ModuleList(Block(cfg) for _ in range(cfg.depth))}
        )
        self.bert["pooler"] = nn.ModuleDict({"dense": nn.Linear(cfg.width, cfg.width)})
        self.drop = nn.Dropout(cfg.dropout)
        self.classifier = nn.Linear(cfg.width, len(spec.classes))
        # that of BERT's code, 0.02 for width 768, scaled to this width
        std = (3 * cfg.width) ** -0.5
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
        """Class logits of texts; t is at most the number of positions."""
        x = self.bert["embeddings"](tokens)
        for block in self.blocks.children():
            x = block(x, mask[:, None, None])
        summary = self.bert.get_submodule("pooler.dense")(x[:, 0]).tanh()
        logits: Tensor = self.classifier(self.drop(summary))
        return logits

    def forward(
        self, tokens: Tensor, mask: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and for each metric its sum over the batch and the number of texts."""
        logits = self.predict(tokens, mask)
        loss = F.cross_entropy(
            logits, labels, label_smoothing=self.smoothing if self.training else 0.0
        )
        correct, count = (logits.argmax(1) == labels).sum(), len(labels)
        return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}


def build(cfg: ModelConfig, spec: Spec) -> BERT:
    """Build the model for this data, with initialized weights."""
    return BERT(cfg, spec)
