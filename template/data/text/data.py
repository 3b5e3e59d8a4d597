"""Text as tokens: the Python standard library's own source, byte by byte, or your own files with any tokenizer.

Yours to change. The rest of the project needs `DataConfig`, `load` and `Prepare`, as they stand here.
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
    """Which text, in which tokens, and in pieces of what length."""

    path: Path | None = None
    """A text file, a folder whose files (by `pattern`) are read, or a glob; null: the source of Python's standard
    library."""
    pattern: str = "*"
    """Which files of a folder count, at any depth: `*.md`, say."""
    tokenizer: str = "bytes"
    """bytes; or a tokenizer.json of Hugging Face's tokenizers; or an encoding that tiktoken knows: gpt2, o200k_base."""
    context: int = within("[8, 1048576]", 128)
    """Tokens that the model sees at once."""
    val_fraction: float = within("(0, 1)", 0.02)
    """Share of the files that is held out; of the text, where there is but one file."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Share of your files that may be unreadable; they are left out, and counted."""
    cache_dir: Path = Path(".cache")
    """Where what is made once of your own files is kept."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in the device's memory, and gather each batch there; for small data sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern or Path(self.pattern).is_absolute():
            self.refuse("pattern", "it must be a relative glob, such as *.txt")


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` must know of the data."""

    vocabulary: int
    """Number of tokens: each is below it."""
    context: int
    bytes_per_token: float = 1.0
    """Of the held-out text: what makes bits a byte comparable between tokenizers."""
    tokenizer: str = "bytes"


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Windows
    val: Windows
    spec: Spec
    in_memory: bool
    """Whether a batch costs so little that a loader process would only add to it."""
    problems: tuple[str, ...] = ()
    """What was left out of your own files, and why."""


def load(cfg: DataConfig) -> Data:
    """Read the text; a file's place in train or val depends on nothing but its relative path.

    Raises:
        UserError: there is no such file, folder or tokenizer, too little can be read, or it holds too little text.
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
    """What happens to a batch on the device: tokens become indices; the targets are the inputs moved by one."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Take a batch as loaded, give it as the model wants it; text gets no noise."""
        tokens = as_indices(batch[0])
        return tokens[:, :-1], tokens[:, 1:]


if __name__ == "__main__":
    from .tools.show import main

    main()
