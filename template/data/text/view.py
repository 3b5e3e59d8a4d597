"""What `python -m <package>.data --show` says and draws of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..data import Batch, Data, Spec
from . import text_generation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def summary(samples: Data) -> dict[str, str]:
    """Short names, and what is to be said of each."""
    return text_generation.summary(samples.train, samples.val, samples.spec.vocabulary, samples.spec.bytes_per_token)


def picture(batch: Batch, spec: Spec) -> Figure:
    """The inputs of a prepared batch, as lines of text."""
    return text_generation.draw(
        batch[0], text_generation.rarity(batch[0]), spec.tokenizer, "Samples; the darker, the rarer the token"
    )
