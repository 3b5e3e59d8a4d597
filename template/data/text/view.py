"""Summary and plot of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..data import Batch, Data, Spec
from . import text_generation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def summary(samples: Data) -> dict[str, str]:
    """A summary of the data, by name."""
    return text_generation.summary(samples.train, samples.val, samples.spec.vocabulary, samples.spec.bytes_per_token)


def plot(batch: Batch, spec: Spec) -> Figure:
    """The inputs of a prepared batch as lines of text."""
    return text_generation.plot_tokens(
        batch[0], text_generation.frequency_bits(batch[0]), spec.tokenizer, "Samples; darker: rarer token"
    )
