"""Text data: the source code of Python's standard library as bytes, or your own files with any tokenizer.

This file is yours to edit. The rest of the project uses `DataConfig`, `load` and `Prepare`; see contracts.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from .config_base import Section, within
from .readers.windows import Windows, as_indices, standard_library

Batch = tuple[Tensor, ...]
"""As loaded: tokens (n, context + 1), uint8, int16 or int32. As prepared: inputs and targets (n, context), int64."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text to load, how to tokenize it, and the context length."""

    path: Path | None = None
    """Text file, folder (its files that match `pattern`), or glob; null: the source code of Python's standard
    library."""
    pattern: str = "*"
    """Files to read from a folder, at any depth, such as `*.md`."""
    tokenizer: str = "bytes"
    """bytes; a tokenizer.json of Hugging Face tokenizers; or an encoding of tiktoken, such as gpt2 or o200k_base."""
    context: int = within("[8, 1048576]", 128)
    """Context length, in tokens."""
    val_fraction: float = within("(0, 1)", 0.02)
    """Fraction of the files for validation; of the text, if there is only one file."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Maximum fraction of unreadable files, which are skipped and counted."""
    cache_dir: Path = Path(".cache")
    """Folder for data derived from your own files, such as decoded images."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in device memory and gather each batch there; for small data sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern or Path(self.pattern).is_absolute():
            self.refuse("pattern", "it must be a relative glob, such as *.txt")


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` need to know about the data."""

    vocabulary: int
    """Number of token ids."""
    context: int
    bytes_per_token: float = 1.0
    """Of the validation text; makes bits per byte comparable between tokenizers."""
    tokenizer: str = "bytes"


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Windows
    val: Windows
    spec: Spec
    in_memory: bool
    """Whether loading a batch is so cheap that worker processes would only slow it down."""
    problems: tuple[str, ...] = ()
    """Files that were skipped, and why."""


def load(cfg: DataConfig) -> Data:
    """Load the text; whether a file of your own belongs to train or val depends only on its relative path.

    Raises:
        UserError: there is no such file, folder or tokenizer, too many files are unreadable, or the text is too short.
    """
    if cfg.path is None and cfg.tokenizer == "bytes":
        found = standard_library(cfg.val_fraction)
    else:
        from .readers import text

        found = text.read(cfg.path, cfg.pattern, cfg.tokenizer, cfg.val_fraction, cfg.max_unreadable, cfg.cache_dir)
    train, val = found.windows(cfg.context)
    spec = Spec(found.vocabulary, cfg.context, found.bytes_per_token, cfg.tokenizer)
    return Data(train, val, spec, found.in_memory, found.problems)


class Prepare(nn.Module):
    """Prepares a batch on the device: tokens become indices, and targets are the inputs shifted by one."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Turn a batch as loaded into inputs and targets; text is not augmented."""
        # Cut before the conversion, which copies: both are contiguous, so that a model can `.view` them.
        return as_indices(batch[0][:, :-1]), as_indices(batch[0][:, 1:])
