"""Texts with labels: statements of Python's standard library, or your own CSV, Parquet or JSON-lines file.

This file is yours to edit. The rest of the project uses `DataConfig`, `load` and `Prepare`; see contracts.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from .config_base import Section, within
from .readers import encoded

Batch = tuple[Tensor, Tensor, Tensor]
"""As loaded: tokens (n, t), int32, 0 after the end of a text; lengths (n,), int64; labels (n,), int64. As prepared:
tokens (n, t), int64; the attention mask (n, t), bool, true for the tokens of the text; labels (n,)."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which texts to load, how to tokenize them, and how to make a batch of texts of different lengths."""

    path: Path | None = None
    """CSV, TSV, Parquet or JSON-lines file with a text and its label in each row; null: statements of Python's standard
    library, whose label is the keyword that they begin with, which is hidden."""
    val_path: Path | None = None
    """File with the validation texts; null: use `val_fraction` of the texts of `path`."""
    val_fraction: float = within("(0, 1)", 0.1)
    """Fraction of the texts for validation, of each class; equal texts are never divided."""
    text: str = "text"
    """Column of the texts."""
    label: str = "label"
    """Column of the labels: names, or integers."""
    tokenizer: str = "train"
    """train: train byte-level BPE on the training texts; or a tokenizer.json of Hugging Face tokenizers; or the folder
    of a model with one, as transformers saves it."""
    vocabulary: int = within("[300, 1000000]", 8000)
    """Maximum number of tokens of a trained tokenizer; texts with less to learn from give fewer."""
    lowercase: bool = False
    """Whether a trained tokenizer ignores case, and accents."""
    length: int = within("[4, 65536]", 128)
    """Maximum number of tokens per text, with the two that mark its ends; longer texts are cut."""
    padding: Literal["length", "batch"] = "length"
    """length: every batch has `length` tokens per text, one shape, as compiled models need. batch: as many as its
    longest text has, rounded up to a multiple of 8; faster where most texts are short."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Maximum fraction of rows without a text or a label, which are skipped and counted."""
    cache_dir: Path = Path(".cache")
    """Folder for data derived from the texts: the trained tokenizer and the token ids."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in device memory and gather each batch there; for small data sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is None and self.val_path is not None:
            self.refuse("val_path", "it needs a file of your own; set data.path too")
        if self.cache == "device" and self.padding == "batch":
            self.refuse("cache", "all samples on the device have one length; use data.padding=length")


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` need to know about the data."""

    vocabulary: int
    """Number of token ids."""
    length: int
    """Maximum number of tokens per text."""
    classes: tuple[str, ...]
    tokenizer: str
    """The content of its tokenizer.json, so that a checkpoint is all that new texts need."""
    padding: str = "length"


class Texts:
    """Dataset of token ids that are stored without padding: a batch is gathered in one call."""

    def __init__(self, split: encoded.Split, length: int, padding: str) -> None:
        self.tokens, self.ends, self.labels = split.tokens, split.ends, split.labels
        self.length, self.padding = length, padding

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self) -> Tensor:
        """The number of tokens of each text, (n,)."""
        return self.ends.diff(prepend=self.ends.new_zeros(1))

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        ends, before = self.ends.index_select(0, chosen), (chosen - 1).clamp(min=0)
        begins = torch.where(chosen > 0, self.ends.index_select(0, before), 0)
        lengths = ends - begins
        longest = self.length if self.padding == "length" else -(-int(lengths.max()) // 8) * 8
        positions = torch.arange(longest)
        places = (begins.unsqueeze(1) + positions).clamp(max=len(self.tokens) - 1)
        tokens = self.tokens.index_select(0, places.flatten()).view(places.shape)
        return tokens.masked_fill(positions >= lengths.unsqueeze(1), 0), lengths, self.labels.index_select(0, chosen)


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Texts
    val: Texts
    spec: Spec
    in_memory: bool
    """Whether loading a batch is so cheap that worker processes would only slow it down."""
    problems: tuple[str, ...] = ()
    """What was skipped, and other warnings, one line each."""


def load(cfg: DataConfig) -> Data:
    """Load the texts; whether a text of your own belongs to train or val depends on the texts of its class alone.

    Raises:
        UserError: a file, a column or the tokenizer is missing or unsuitable, or there are too few texts.
    """
    found = encoded.read(cfg)
    spec = Spec(found.vocabulary, cfg.length, found.classes, found.tokenizer, cfg.padding)
    train, val = (Texts(split, cfg.length, cfg.padding) for split in (found.train, found.val))
    return Data(train, val, spec, in_memory=True, problems=found.problems)


class Prepare(nn.Module):
    """Prepares a batch on the device: tokens become indices, and lengths the attention mask."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def inputs(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Prepare the inputs, without labels."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return tokens.long(), positions < lengths.unsqueeze(1)

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Turn a batch as loaded into tokens, mask and labels; texts are not augmented."""
        return *self.inputs(*batch[:2]), batch[2]
