"""Language modeling with a trained model: next-token metrics, continuations of prompts, and export."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..data import Batch, Spec
from . import text_generation
from .trained_model import TrainedModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = "Continue text prompts."
overlapping = text_generation.overlapping  # of `evaluate --stride`


class Details(text_generation.NextTokenMetrics):
    """Perplexity and accuracy of the next token."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        super().__init__(device)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the inputs, the output and the sampling options."""
    parser.add_argument("inputs", nargs="*", type=Path, help="text files to continue")
    parser.add_argument("--output", type=Path, metavar="FILE", help="a .txt or .json file (default: print)")
    text_generation.add_options(parser)


def predict(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Continue each prompt."""
    text_generation.continue_prompts(trained, args)


def plot(trained: TrainedModel, batch: Batch) -> Figure:
    """Validation text, shaded by the loss of each token."""
    tokens, targets = (part[:16] for part in batch)
    with trained.precision.autocast():
        bits = text_generation.token_bits(trained.net, tokens, targets).cpu()
    return text_generation.plot_tokens(
        targets, bits, trained.spec.tokenizer, "Validation text; darker: higher loss of the token"
    )


def export_module(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module to export, and example inputs."""
    spec = trained.spec
    tokens = torch.randint(0, spec.vocabulary, (2, spec.context), generator=torch.Generator().manual_seed(0))
    return text_generation.NextTokenLogits(trained.net), (tokens,)
