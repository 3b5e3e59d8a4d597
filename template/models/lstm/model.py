"""Stacked LSTMs (Hochreiter and Schmidhuber 1997) with residual connections, for text and for series.

Yours to change. The rest of the project needs `ModelConfig`, `build`, and a `forward` that returns the loss and sums.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec

SIZES: dict[str, dict[str, object]] = {
    "small": {"depth": 2, "width": 96},
    "base": {"depth": 3, "width": 640},
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network's size, and its loss."""

    size: Literal["small", "base"] = "small"
    """The network's size; a value given below goes before it."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks, each one LSTM layer. 0: as `size` says."""
    width: int = within("[0, inf)", 0)
    """Size of the residual stream, and of each LSTM's state. 0: as `size` says."""
    dropout: float = within("[0, 1)", 0.0)
    """Share of activations dropped in training, between layers and not within: Zaremba et al. 2014, arXiv:1409.2329."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Text: share of each label that training spreads over all tokens: Szegedy et al. 2015, arXiv:1512.00567."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, which Tensor Cores need")


class Block(nn.Module):
    """One LSTM layer on a normalised copy, added back."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(cfg.width)
        self.lstm = nn.LSTM(cfg.width, cfg.width, batch_first=True)
        self.drop = nn.Dropout(cfg.dropout)
        self._init(**dict(self.lstm.named_parameters()))

    def _init(self, weight_ih_l0: Tensor, weight_hh_l0: Tensor, bias_ih_l0: Tensor, bias_hh_l0: Tensor) -> None:
        """Orthogonal recurrent weights, Saxe et al. 2013, arXiv:1312.6120; input weights after Glorot and Bengio 2010.

        The forget gates begin open, with a bias of 1: Jozefowicz et al. 2015, section 3.2.
        """
        for into, recurrent in zip(weight_ih_l0.chunk(4), weight_hh_l0.chunk(4), strict=True):
            nn.init.xavier_uniform_(into)
            nn.init.orthogonal_(recurrent)
        for bias in (bias_ih_l0, bias_hh_l0):
            nn.init.zeros_(bias)
        nn.init.ones_(bias_ih_l0.chunk(4)[1])  # the gates: input, forget, cell, output

    def forward(self, x: Tensor) -> Tensor:
        with _kernels_format(x):
            hidden, _ = self.lstm(self.norm(x).to(next(self.lstm.parameters()).dtype))
        added: Tensor = self.drop(hidden)
        return x + added


def _kernels_format(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast only where the LSTM's kernel has that format, else fp32, which is TF32 on a GPU.

    Under any autocast cuDNN computes in fp16 (aten/src/ATen/cudnn/AutocastRNN.cpp), also where bf16 is meant and so
    without a scaler; oneDNN, on CPUs, has bf16 and no fp16.
    """
    kind = x.device.type
    own = {"cuda": torch.float16, "cpu": torch.bfloat16}.get(kind)
    if own is None or torch.get_autocast_dtype(kind) == own:
        return nullcontext()
    return torch.autocast(kind, enabled=False)


class LSTM(nn.Module):
    """What both tasks share: the blocks, from (n, t, width) to normalised states (n, t, width)."""

    no_compile_reason = "torch.compile does not trace nn.LSTM, whose fused kernels (cuDNN's) are as fast as it gets"
    """Why it is not to be compiled: the graph would break at each layer, or unroll into thousands of operations."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width)

    def _states(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        states: Tensor = self.norm(x)
        return states


class Language(LSTM):
    """Tokens (n, t) to scores of the next token (n, t, vocabulary)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__(cfg)
        self.smoothing = cfg.label_smoothing
        self.vocabulary, self.bytes_per_token = spec.vocabulary, spec.bytes_per_token
        # Rows up to a multiple of 64, as matrix units like; no token has the last ones, so training drives them down.
        rows = -(-spec.vocabulary // 64) * 64
        self.tokens = nn.Embedding(rows, cfg.width)
        self.head = nn.Linear(cfg.width, rows, bias=False)
        self.head.weight = self.tokens.weight  # tied: Press and Wolf 2016, arXiv:1608.05859
        nn.init.normal_(self.tokens.weight, std=(3 * cfg.width) ** -0.5)  # small, so that it begins with a guess

    def predict(self, tokens: Tensor) -> Tensor:
        """Scores, before softmax, of the token that follows each of the (n, t) tokens."""
        scores: Tensor = self.head(self._states(self.tokens(tokens)))
        return scores[..., : self.vocabulary]

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, float]]]:
        """Return the mean loss in nats, and for each metric its sum over the batch and the count of tokens or bytes."""
        scores = self.head(self._states(self.tokens(tokens)))
        smoothing = self.smoothing if self.training else 0.0
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
        count = targets.numel()
        nats = loss.detach() * count
        return loss, {"loss": (nats, count), "bits_per_byte": (nats / math.log(2), count * self.bytes_per_token)}


class Forecaster(LSTM):
    """Normalised rows (n, window, columns) to the next ones (n, horizon, columns), all at once from the last state."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__(cfg)
        self.shape = (spec.horizon, len(spec.columns))
        self.stem = nn.Linear(len(spec.columns), cfg.width)
        self.head = nn.Linear(cfg.width, math.prod(self.shape))
        nn.init.zeros_(self.head.weight)  # it begins as the naive forecast, and learns what to correct
        nn.init.zeros_(self.head.bias)

    def predict(self, rows: Tensor) -> Tensor:
        """The forecast, in fp32: the last value, and a correction of it."""
        correction: Tensor = self.head(self._states(self.stem(rows))[:, -1])
        forecast: Tensor = rows[:, -1:] + correction.to(rows.dtype).view(-1, *self.shape)
        return forecast

    def forward(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor | int]]]:
        """Return the mean squared error, and for each metric its sum over the batch and what to divide by.

        `skill` is the share of the naive forecast's squared error, which repeats the last value, that is got rid of.
        """
        error = self.predict(rows) - targets
        loss = error.square().mean()
        squared, naive = error.detach().square().sum(), (rows[:, -1:] - targets).square().sum()
        absolute = error.detach().abs().sum()
        count = targets.numel()
        return loss, {"loss": (squared, count), "mae": (absolute, count), "skill": (naive - squared, naive)}


def build(cfg: ModelConfig, spec: Spec) -> Language | Forecaster:
    """Make the network for such data, with fresh weights."""
    return Language(cfg, spec) if spec.vocabulary else Forecaster(cfg, spec)
