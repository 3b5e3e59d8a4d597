"""Residual LSTMs (Hochreiter and Schmidhuber 1997) for text and time series.

This file is yours to edit. Training needs `ModelConfig` and `build`: see contracts.py.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, sized, within
from .data import Spec

SIZES: dict[str, dict[str, int]] = {
    "small": {},  # the defaults of ModelConfig
    "base": {
        "depth": 3,
        "width": 640,
    },
}


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and regularization."""

    size: Literal["small", "base"] = "small"
    """Size of the network; the options below override it."""
    depth: int = within("[1, 1000]", 2)
    """Number of blocks of one LSTM layer each."""
    width: int = within("[1, inf)", 96)
    """Embedding dimension and LSTM state size."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability between layers: Zaremba et al. 2014, arXiv:1409.2329."""


class Block(nn.Module):
    """Pre-norm LSTM layer with a residual connection."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        width = cfg.width
        self.norm = nn.LayerNorm(width)
        self.lstm = nn.LSTM(
            width,
            width,
            batch_first=True,
        )
        self.drop = nn.Dropout(cfg.dropout)
        self.initialize()

    def initialize(self) -> None:
        """Initialize the matrices of the four gates one by one."""
        inputs = self.lstm.get_parameter("weight_ih_l0").chunk(4)
        recurrent = self.lstm.get_parameter("weight_hh_l0").chunk(4)
        for gate in range(4):
            nn.init.xavier_uniform_(inputs[gate])  # Glorot and Bengio 2010
            nn.init.orthogonal_(recurrent[gate])  # Saxe et al. 2013, arXiv:1312.6120

        bias = self.lstm.get_parameter("bias_ih_l0")
        nn.init.zeros_(bias)
        nn.init.zeros_(self.lstm.get_parameter("bias_hh_l0"))
        # forget gates start open: Jozefowicz et al. 2015, section 3.2
        forget = bias.chunk(4)[1]
        nn.init.ones_(forget)

    def forward(self, x: Tensor) -> Tensor:
        states = run_lstm(self.lstm, self.norm(x))
        y: Tensor = self.drop(states)
        return x + y


def run_lstm(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Return the states of a layer, in fp32, or on a GPU in autocast's format.

    Left to itself, cuDNN's autocast would compute in fp16 instead of bf16.
    """
    device = x.device.type
    dtype = None
    if device == "cuda" and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)

    with torch.autocast(device, torch.float16, enabled=dtype == torch.float16):
        if dtype == torch.bfloat16:
            return in_bf16(lstm, x)
        weight = next(lstm.parameters())
        states: Tensor = lstm(x.to(weight.dtype))[0]
        return states


def in_bf16(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Run a layer on a copy of its weights in bf16, in one piece of memory.

    So cuDNN (9.13 or newer) wants them.
    """
    weights = list(lstm.parameters())
    memory = torch.cat([weight.flatten() for weight in weights])
    memory = memory.to(torch.bfloat16)
    copies = []
    start = 0
    for weight in weights:
        end = start + weight.numel()
        copies.append(memory[start:end].view_as(weight))
        start = end

    x = x.to(torch.bfloat16)
    zeros = x.new_zeros(
        1,
        len(x),
        lstm.hidden_size,
    )
    states, _, _ = torch.lstm(
        x,
        (zeros, zeros),
        copies,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=lstm.training,
        bidirectional=False,
        batch_first=True,
    )
    return states


class LSTM(nn.Module):
    """Base of both models: LSTM blocks from (n, t, width) to normalized states (n, t, width)."""

    no_compile_reason = (
        "torch.compile does not trace nn.LSTM, whose fused cuDNN kernels are fast already"
    )

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList()
        for _ in range(cfg.depth):
            self.blocks.append(Block(cfg))
        self.norm = nn.LayerNorm(cfg.width)

    def states(self, x: Tensor) -> Tensor:
        """Return the states of the last block."""
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.norm(x)
        return y


class Language(LSTM):
    """Bytes (n, t) to the logits of the next ones (n, t, vocabulary)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__(cfg)
        width = cfg.width
        self.tokens = nn.Embedding(spec.vocabulary, width)
        self.head = nn.Linear(
            width,
            spec.vocabulary,
            bias=False,
        )
        self.head.weight = self.tokens.weight  # tied: Press and Wolf 2016, arXiv:1608.05859
        # the first predictions are nearly uniform
        std = (3 * width) ** -0.5
        nn.init.normal_(self.tokens.weight, std=std)

    def predict(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next byte at each of the (n, t) positions."""
        x = self.tokens(tokens)
        logits: Tensor = self.head(self.states(x))
        return logits

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss in nats, and each metric's sum with the count of bytes."""
        logits = self.predict(tokens)
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
        )

        count = targets.numel()
        nats = loss.detach() * count
        return loss, {
            "loss": (nats, count),
            "bits_per_byte": (nats / math.log(2), count),
        }


class Forecaster(LSTM):
    """Normalized rows (n, window, columns) to a forecast (n, horizon, columns)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__(cfg)
        columns = len(spec.columns)
        self.shape = (spec.horizon, columns)
        self.stem = nn.Linear(columns, cfg.width)
        self.head = nn.Linear(cfg.width, spec.horizon * columns)
        # starts as the naive forecast, and learns a correction
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.std = nn.Buffer(
            torch.tensor(spec.std),
            persistent=False,
        )

    def predict(self, rows: Tensor) -> Tensor:
        """Return the forecast in fp32: the last value, plus a correction from the last state."""
        states = self.states(self.stem(rows))
        correction = self.head(states[:, -1])
        correction = correction.to(rows.dtype).unflatten(
            1,
            self.shape,
        )
        forecast: Tensor = rows[:, -1:] + correction
        return forecast

    def forward(
        self,
        rows: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor | int]]]:
        """Return the mean squared error, and each metric's sum with the count to divide by.

        `skill` is 1 - error / error of the naive forecast, which repeats the last value.
        """
        error = self.predict(rows) - targets
        loss = error.square().mean()

        count = targets.numel()
        error = error.detach()
        squared = error.square().sum()
        absolute = (error.abs() * self.std).sum()
        naive = (rows[:, -1:] - targets).square().sum()
        return loss, {
            "loss": (squared, count),
            "mae": (absolute, count),
            "skill": (naive - squared, naive),
        }


def build(cfg: ModelConfig, spec: Spec) -> Language | Forecaster:
    """Build the model for this data, with initialized weights."""
    if spec.vocabulary:
        return Language(cfg, spec)
    return Forecaster(cfg, spec)
