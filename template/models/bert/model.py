"""A text encoder, BERT (Devlin et al. 2019, arXiv:1810.04805), with a classifier on its first token.

Its parameters have the names and shapes of those in transformers' BertForSequenceClassification, so that its
checkpoints load as they are. This file is yours to edit. The rest of the project uses `ModelConfig` and `build`; see
contracts.py.
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
EPS = 1e-12
"""The layer norms' epsilon in BERT's code."""


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture, regularization and loss."""

    size: Literal["tiny", "mini", "base", "large"] = "tiny"
    """Size of the network, those above tiny are published ones; the options below override it."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks. 0: set by `size`."""
    width: int = within("[0, inf)", 0)
    """Embedding dimension. 0: set by `size`."""
    heads: int = within("[0, inf)", 0)
    """Number of attention heads of width / heads dimensions each. 0: set by `size`."""
    positions: int = within("[0, inf)", 0)
    """Number of position embeddings, at least data.length; 512 in published models. 0: data.length."""
    dropout: float = within("[0, 1)", 0.1)
    """Dropout probability, of embeddings, attention weights, each sublayer's output and the classifier's input."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")
        if self.width % self.heads or self.width // self.heads % 8:
            self.refuse("heads", f"it must divide model.width={self.width} into multiples of 8")


class Embeddings(nn.Module):
    """The sum of a token's, its position's and its segment's embedding; all tokens are of the first segment."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(spec.vocabulary, cfg.width)
        self.position_embeddings = nn.Embedding(cfg.positions or spec.length, cfg.width)
        self.token_type_embeddings = nn.Embedding(2, cfg.width)
        self.LayerNorm = nn.LayerNorm(cfg.width, eps=EPS)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.position_embeddings.weight[: tokens.shape[1]] + self.token_type_embeddings.weight[0]
        embedded: Tensor = self.drop(self.LayerNorm(self.word_embeddings(tokens) + places))
        return embedded


class Residual(nn.Module):
    """A linear layer whose output is added to the residual stream, and the sum normalized (post-norm)."""

    def __init__(self, cfg: ModelConfig, inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, cfg.width)
        self.LayerNorm = nn.LayerNorm(cfg.width, eps=EPS)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        normalized: Tensor = self.LayerNorm(self.drop(self.dense(hidden)) + x)
        return normalized


class Projections(nn.Module):
    """Queries, keys and values."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.query = nn.Linear(cfg.width, cfg.width)
        self.key = nn.Linear(cfg.width, cfg.width)
        self.value = nn.Linear(cfg.width, cfg.width)


class Attention(nn.Module):
    """Self-attention among the tokens of a text."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = cfg.heads, cfg.dropout
        self.self = Projections(cfg)
        self.output = Residual(cfg, cfg.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, t, d = x.shape
        projected = (self.self.query(x), self.self.key(x), self.self.value(x))
        q, k, v = (part.view(n, t, self.heads, d // self.heads).transpose(1, 2) for part in projected)
        dropped = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropped)
        added: Tensor = self.output(mixed.transpose(1, 2).reshape(n, t, d), x)
        return added


class Intermediate(nn.Module):
    """The wide layer of the MLP."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(cfg.width, 4 * cfg.width)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.dense(x))


class Block(nn.Module):
    """Transformer block: attention, then an MLP."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(cfg)
        self.intermediate = Intermediate(cfg)
        self.output = Residual(cfg, 4 * cfg.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        output: Tensor = self.output(self.intermediate(x), x)
        return output


class Encoder(nn.Module):
    """The blocks."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Block(cfg) for _ in range(cfg.depth))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for block in self.layer:
            x = block(x, mask)
        return x


class Pooler(nn.Module):
    """The summary of a text: a layer on its first token."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(cfg.width, cfg.width)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.dense(x[:, 0]).tanh()
        return pooled


class Backbone(nn.Module):
    """BERT without a head: tokens (n, t) and their mask (n, t) to a summary (n, width) of each text."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.embeddings = Embeddings(cfg, spec)
        self.encoder = Encoder(cfg)
        self.pooler = Pooler(cfg)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        visible = mask[:, None, None]  # to every head and token
        summary: Tensor = self.pooler(self.encoder(self.embeddings(tokens), visible))
        return summary


class BERT(nn.Module):
    """Tokens (n, t), of which those with a true mask (n, t) are a text, to class logits (n, classes)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing = cfg.label_smoothing
        one_shape = spec.padding == "length"
        self.no_compile_reason = "" if one_shape else "its batches have many shapes, unless data.padding=length"
        self.bert = Backbone(cfg, spec)
        self.drop = nn.Dropout(cfg.dropout)
        self.classifier = nn.Linear(cfg.width, len(spec.classes))
        self._init()

    @property
    def blocks(self) -> nn.ModuleList:
        """The repeated layers; a property, because in checkpoints they have another name."""
        return self.bert.encoder.layer

    def _init(self) -> None:
        """Initialize as BERT's code, with its standard deviation of 0.02 for width 768 scaled to this width."""
        std = (3 * self.classifier.in_features) ** -0.5
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def predict(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Class logits of texts; t is at most the number of positions."""
        logits: Tensor = self.classifier(self.drop(self.bert(tokens, mask)))
        return logits

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and for each metric its sum over the batch and the number of texts."""
        logits = self.predict(tokens, mask)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.smoothing if self.training else 0.0)
        correct, count = (logits.argmax(1) == labels).sum(), len(labels)
        return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}


def build(cfg: ModelConfig, spec: Spec) -> BERT:
    """Build the model for this data, with initialized weights.

    Raises:
        UserError: there are fewer positions than a text may have tokens.
    """
    if 0 < cfg.positions < spec.length:
        cfg.refuse("positions", f"it must be at least data.length={spec.length}")
    return BERT(cfg, spec)
