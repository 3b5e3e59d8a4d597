"""Residual LSTMs (Hochreiter and Schmidhuber 1997) for text and time series.

This file is yours to edit.
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
    "small": {"depth": 2, "width": 96},
    "base": {"depth": 3, "width": 640},
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and regularization."""

    size: Literal["small", "base"] = "small"
    """Model size: sets the defaults of the fields below, which can be overridden one by one."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks of one LSTM layer each. 0: set by `size`."""
    width: int = within("[0, inf)", 0)
    """Embedding dimension and LSTM state size. 0: set by `size`."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability between layers: Zaremba et al. 2014, arXiv:1409.2329."""

    def __post_init__(self) -> None:
        self.apply_size(SIZES[self.size])
        super().__post_init__()


class Block(nn.Module):
    """Pre-norm LSTM layer with a residual connection."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(cfg.width)
        self.lstm = nn.LSTM(cfg.width, cfg.width, batch_first=True)
        self.drop = nn.Dropout(cfg.dropout)
        weights = dict(self.lstm.named_parameters())
        for inputs, recurrent in zip(
            weights["weight_ih_l0"].chunk(4), weights["weight_hh_l0"].chunk(4), strict=True
        ):
            nn.init.xavier_uniform_(inputs)  # Glorot and Bengio 2010
            nn.init.orthogonal_(recurrent)  # Saxe et al. 2013, arXiv:1312.6120
        nn.init.zeros_(weights["bias_ih_l0"])
        nn.init.zeros_(weights["bias_hh_l0"])
        # forget gates start open: Jozefowicz et al. 2015, section 3.2
        nn.init.ones_(weights["bias_ih_l0"].chunk(4)[1])

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.drop(_hidden_states(self.lstm, self.norm(x)))
        return x + added


def _hidden_states(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Run a layer in fp32, or on a GPU in autocast's format.

    In bf16 cuDNN's autocast would compute in fp16.
    """
    kind = x.device.type
    amp = (
        torch.get_autocast_dtype(kind)
        if kind == "cuda" and torch.is_autocast_enabled(kind)
        else None
    )
    with torch.autocast(kind, torch.float16, enabled=amp == torch.float16):
        hidden: Tensor = (
            in_bf16(lstm, x)
            if amp == torch.bfloat16
            else lstm(x.to(next(lstm.parameters()).dtype))[0]
        )
    return hidden


def in_bf16(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Run a layer on a copy of its weights in bf16, in one piece of memory, as cuDNN (9.13 or newer) wants them."""
    weights = list(lstm.parameters())
    flat = torch.cat([weight.flatten() for weight in weights]).to(torch.bfloat16)
    copies = flat.split([weight.numel() for weight in weights])
    shaped = [copy.view_as(weight) for copy, weight in zip(copies, weights, strict=True)]
    start = x.new_zeros(1, len(x), lstm.hidden_size, dtype=torch.bfloat16)
    return torch.lstm(
        x.to(torch.bfloat16), (start, start), shaped, True, 1, 0.0, lstm.training, False, True
    )[0]


class LSTM(nn.Module):
    """Base of both models: LSTM blocks from (n, t, width) to normalized states (n, t, width)."""

    no_compile_reason = (
        "torch.compile does not trace nn.LSTM, whose fused cuDNN kernels are fast already"
    )

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width)

    def _states(self, x: Tensor) -> Tensor:
        for layer in (self.drop, *self.blocks, self.norm):
            x = layer(x)
        return x


class Language(LSTM):
    """Bytes (n, t) to the logits of the next ones (n, t, vocabulary)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__(cfg)
        self.tokens = nn.Embedding(spec.vocabulary, cfg.width)
        self.head = nn.Linear(cfg.width, spec.vocabulary, bias=False)
        self.head.weight = self.tokens.weight  # tied: Press and Wolf 2016, arXiv:1608.05859
        # the first predictions are nearly uniform
        nn.init.normal_(self.tokens.weight, std=(3 * cfg.width) ** -0.5)

    def predict(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte at each of the (n, t) positions."""
        logits: Tensor = self.head(self._states(self.tokens(tokens)))
        return logits

    def forward(
        self, tokens: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss in nats, and for each metric its sum over the batch and the count of bytes."""
        loss = F.cross_entropy(self.predict(tokens).flatten(0, 1), targets.flatten())
        nats, count = loss.detach() * targets.numel(), targets.numel()
        return loss, {"loss": (nats, count), "bits_per_byte": (nats / math.log(2), count)}


class Forecaster(LSTM):
    """Normalized rows (n, window, columns) to a forecast (n, horizon, columns), from the last state."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__(cfg)
        self.shape = (spec.horizon, len(spec.columns))
        self.stem = nn.Linear(len(spec.columns), cfg.width)
        self.head = nn.Linear(cfg.width, math.prod(self.shape))
        nn.init.zeros_(self.head.weight)  # starts as the naive forecast, and learns a correction
        nn.init.zeros_(self.head.bias)
        self.std = nn.Buffer(torch.tensor(spec.std), persistent=False)

    def predict(self, rows: Tensor) -> Tensor:
        """The forecast, fp32: the last value plus a correction."""
        correction: Tensor = self.head(self._states(self.stem(rows))[:, -1])
        forecast: Tensor = rows[:, -1:] + correction.to(rows.dtype).view(-1, *self.shape)
        return forecast

    def forward(
        self, rows: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor | int]]]:
        """Return the mean squared error and the metrics; `skill` is 1 - error / error of repeating the last value."""
        error = self.predict(rows) - targets
        loss = error.square().mean()
        squared, naive, count = (
            error.detach().square().sum(),
            (rows[:, -1:] - targets).square().sum(),
            targets.numel(),
        )
        absolute = (error.detach().abs() * self.std).sum()
        return loss, {
            "loss": (squared, count),
            "mae": (absolute, count),
            "skill": (naive - squared, naive),
        }


def build(cfg: ModelConfig, spec: Spec) -> Language | Forecaster:
    """Build the model for this data, with initialized weights."""
    return Language(cfg, spec) if spec.vocabulary else Forecaster(cfg, spec)
