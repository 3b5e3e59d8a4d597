"""Stacked LSTMs (Hochreiter and Schmidhuber 1997) with residual connections, for text and time series.

This file is yours to edit. The rest of the project uses `ModelConfig` and `build`; see contracts.py.
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
    """Architecture, regularization and loss."""

    size: Literal["small", "base"] = "small"
    """Model size: sets the defaults of the fields below, which can be overridden one by one."""
    depth: int = within("[0, 1000]", 0)
    """Number of blocks of one LSTM layer each. 0: set by `size`."""
    width: int = within("[0, inf)", 0)
    """Embedding dimension and LSTM state size. 0: set by `size`."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability between layers: Zaremba et al. 2014, arXiv:1409.2329."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Text: label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")


class Block(nn.Module):
    """Pre-norm LSTM layer with a residual connection."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(cfg.width)
        self.lstm = nn.LSTM(cfg.width, cfg.width, batch_first=True)
        self.drop = nn.Dropout(cfg.dropout)
        self._init(**dict(self.lstm.named_parameters()))

    def _init(self, weight_ih_l0: Tensor, weight_hh_l0: Tensor, bias_ih_l0: Tensor, bias_hh_l0: Tensor) -> None:
        """Orthogonal recurrent weights, Saxe et al. 2013, arXiv:1312.6120; input weights after Glorot and Bengio 2010.

        Forget gates start open, with a bias of 1: Jozefowicz et al. 2015, section 3.2.
        """
        for inputs, recurrent in zip(weight_ih_l0.chunk(4), weight_hh_l0.chunk(4), strict=True):
            nn.init.xavier_uniform_(inputs)
            nn.init.orthogonal_(recurrent)
        for bias in (bias_ih_l0, bias_hh_l0):
            nn.init.zeros_(bias)
        nn.init.ones_(bias_ih_l0.chunk(4)[1])  # order of the gates: input, forget, cell, output

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.drop(_hidden_states(self.lstm, self.norm(x)))
        return x + added


def _hidden_states(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Run a layer in the format of autocast where its kernel supports that, else in fp32, which is TF32 on a GPU."""
    if x.device.type == "cuda" and torch.is_autocast_enabled("cuda"):
        wanted = torch.get_autocast_dtype("cuda")
        supported = not lstm.proj_size and torch.cudnn_is_acceptable(x.new_empty(1, dtype=wanted))
        if wanted == torch.bfloat16 and supported:
            return in_bf16(lstm, x)
    with _supported_autocast(x):
        hidden: Tensor = lstm(x.to(next(lstm.parameters()).dtype))[0]
    return hidden


def in_bf16(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Run a layer on a copy of its weights in bf16, which lie in one piece of memory, as cuDNN wants them.

    Autocast would compute in fp16 instead, see below. cuDNN has bf16 from version 9.13.
    """
    with torch.autocast(x.device.type, enabled=False):
        weights = list(lstm.parameters())
        flat = torch.cat([weight.flatten() for weight in weights]).to(torch.bfloat16)
        copies = flat.split([weight.numel() for weight in weights])
        shaped = [copy.view_as(weight) for copy, weight in zip(copies, weights, strict=True)]
        layers = lstm.num_layers * (1 + lstm.bidirectional)
        start = x.new_zeros(layers, len(x), lstm.hidden_size, dtype=torch.bfloat16)
        options = (lstm.bias, lstm.num_layers, lstm.dropout, lstm.training, lstm.bidirectional, lstm.batch_first)
        return torch.lstm(x.to(torch.bfloat16), (start, start), shaped, *options)[0]


def _supported_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast only where the LSTM kernel supports the dtype.

    Under any autocast cuDNN computes in fp16 (aten/src/ATen/cudnn/AutocastRNN.cpp), even for bf16, which has no
    gradient scaler; oneDNN has no fp16 kernel for CPUs, and a bf16 one only for those with bf16 instructions.
    """
    kind = x.device.type
    if kind not in ("cuda", "cpu"):
        return nullcontext()
    able = torch.cpu.get_capabilities()
    on_cpu = torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32
    supported = torch.float16 if kind == "cuda" else on_cpu
    return nullcontext() if torch.get_autocast_dtype(kind) == supported else torch.autocast(kind, enabled=False)


class LSTM(nn.Module):
    """Base of both models: LSTM blocks from (n, t, width) to normalized states (n, t, width)."""

    # The graph would break at each layer, or unroll into thousands of operations.
    no_compile_reason = "torch.compile does not trace nn.LSTM, whose fused cuDNN kernels are fast already"

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
    """Tokens (n, t) to next-token logits (n, t, vocabulary)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__(cfg)
        self.smoothing = cfg.label_smoothing
        self.vocabulary, self.bytes_per_token = spec.vocabulary, spec.bytes_per_token
        # Padded to a multiple of 64 for fast matrix products; the logits of the last rows are never used.
        rows = -(-spec.vocabulary // 64) * 64
        self.tokens = nn.Embedding(rows, cfg.width)
        self.head = nn.Linear(cfg.width, rows, bias=False)
        self.head.weight = self.tokens.weight  # tied: Press and Wolf 2016, arXiv:1608.05859
        nn.init.normal_(
            self.tokens.weight, std=(3 * cfg.width) ** -0.5
        )  # small, so that the first predictions are nearly uniform

    def predict(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each of the (n, t) positions."""
        logits: Tensor = self.head(self._states(self.tokens(tokens)))
        return logits[..., : self.vocabulary]

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, float]]]:
        """Return the mean loss in nats, and for each metric its sum over the batch and the count of tokens or bytes."""
        logits = self.predict(tokens)
        smoothing = self.smoothing if self.training else 0.0
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
        count = targets.numel()
        nats = loss.detach() * count
        return loss, {"loss": (nats, count), "bits_per_byte": (nats / math.log(2), count * self.bytes_per_token)}


class Forecaster(LSTM):
    """Normalized rows (n, window, columns) to a forecast (n, horizon, columns), from the last state."""

    std: Tensor

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__(cfg)
        self.shape = (spec.horizon, len(spec.columns))
        self.stem = nn.Linear(len(spec.columns), cfg.width)
        self.head = nn.Linear(cfg.width, math.prod(self.shape))
        nn.init.zeros_(self.head.weight)  # starts as the naive forecast, and learns a correction
        nn.init.zeros_(self.head.bias)
        self.register_buffer("std", torch.tensor(spec.std), persistent=False)

    def predict(self, rows: Tensor) -> Tensor:
        """The forecast, fp32: the last value plus a correction."""
        correction: Tensor = self.head(self._states(self.stem(rows))[:, -1])
        forecast: Tensor = rows[:, -1:] + correction.to(rows.dtype).view(-1, *self.shape)
        return forecast

    def forward(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor | int]]]:
        """Return the mean squared error, and for each metric its sum over the batch and the count to divide by.

        `skill` is the reduction of the squared error relative to the naive forecast, which repeats the last value;
        `mae` is the mean absolute error over all columns, each in its own unit.
        """
        error = self.predict(rows) - targets
        loss = error.square().mean()
        squared, naive = error.detach().square().sum(), (rows[:, -1:] - targets).square().sum()
        absolute = (error.detach().abs() * self.std).sum()
        count = targets.numel()
        return loss, {"loss": (squared, count), "mae": (absolute, count), "skill": (naive - squared, naive)}


def build(cfg: ModelConfig, spec: Spec) -> Language | Forecaster:
    """Build the model for this data, with initialized weights."""
    return Language(cfg, spec) if spec.vocabulary else Forecaster(cfg, spec)
