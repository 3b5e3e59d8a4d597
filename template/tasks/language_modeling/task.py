"""Text after training: how well the next token is foreseen, continuations of a prompt, and the network for export."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..data import Batch, Spec
from . import text_generation
from .trained_model import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = "Continue a text."


class Details(text_generation.NextToken):
    """What `evaluate` adds: perplexity and accuracy of the next token."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        super().__init__(device)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Text files, or a prompt, and how the continuation is drawn."""
    parser.add_argument("inputs", nargs="*", type=Path, help="text files, each of which is continued")
    parser.add_argument("--output", type=Path, metavar="FILE", help=".txt or .json; without it, the text is printed")
    text_generation.add_options(parser)


def predict(trained: Trained, args: argparse.Namespace) -> None:
    """Continue each prompt."""
    text_generation.continue_prompts(trained, args)


def picture(trained: Trained, batch: Batch) -> Figure:
    """Held-out text, with what each token costs the model."""
    tokens, targets = (part[:16] for part in batch)
    with trained.precision.autocast():
        bits = text_generation.surprise(trained.net, tokens, targets).cpu()
    return text_generation.draw(targets, bits, trained.spec.tokenizer, "Held-out text; the darker, the less foreseen")


def exported(trained: Trained) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network from tokens to scores, and tokens to try it on."""
    spec = trained.spec
    tokens = torch.randint(0, spec.vocabulary, (2, spec.context), generator=torch.Generator().manual_seed(0))
    return text_generation.Scores(trained.net), (tokens,)
