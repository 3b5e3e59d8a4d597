"""Sequences: text as tokens, or a series of measurements; data that are built in, or your own files.

Yours to change. The rest of the project needs `DataConfig`, `load` and `Prepare`, as they stand here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .config_base import Section, within
from .errors import UserError
from .readers.windows import Windows, as_indices, standard_library

Batch = tuple[Tensor, ...]
"""As loaded: tokens (n, context + 1), uint8, int16 or int32; or rows (n, window + horizon, columns), float32. As
prepared: inputs and targets (n, context), int64; or (n, window, columns) and (n, horizon, columns), normalised."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text or series, and in pieces of what length."""

    kind: Literal["text", "series"] = "text"
    """text: foresee the next token; series: forecast the next rows."""
    path: Path | None = None
    """Text: a file, a folder whose files (by `pattern`) are read, or a glob; null: the source of Python's standard
    library. Series: a CSV or Parquet file; null: the voltage of a nerve cell."""
    val_fraction: float | None = within("(0, 1)", None)
    """Share that is held out, of the files, and of one alone or of a series the end; null: 0.02 of text, 0.2 of a
    series."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Share of your files that may be unreadable; they are left out, and counted."""
    cache_dir: Path = Path(".cache")
    """Where what is made once of your own files is kept."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in the device's memory, and gather each batch there; for small data sets."""
    pattern: str = "*"
    """Text: which files of a folder count, at any depth: `*.md`, say."""
    tokenizer: str = "bytes"
    """Text: bytes; or a tokenizer.json of Hugging Face's tokenizers; or an encoding that tiktoken knows: gpt2,
    o200k_base."""
    context: int = within("[8, 1048576]", 128)
    """Text: tokens that the model sees at once."""
    columns: tuple[str, ...] = ()
    """Series: which columns to forecast, from each other; none: all that hold numbers."""
    time: str | None = None
    """Series: the column of the time, which is no input, and has to increase; null: there is none."""
    window: int = within("[2, 1048576]", 64)
    """Series: rows that the model sees at once."""
    horizon: int = within("[1, 65536]", 16)
    """Series: rows that it forecasts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern or Path(self.pattern).is_absolute():
            self.refuse("pattern", "it must be a relative glob, such as *.txt")
        if self.time is not None and self.time in self.columns:
            self.refuse("time", "it must not be one of data.columns")


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` must know of the data."""

    vocabulary: int
    """Number of tokens: each is below it. 0 for a series."""
    context: int
    """Tokens, or rows of a series, that the model sees at once."""
    bytes_per_token: float = 1.0
    """Of the held-out text: what makes bits a byte comparable between tokenizers."""
    tokenizer: str = "bytes"
    horizon: int = 0
    """Of a series: rows that are forecast."""
    columns: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    """Of each column over the train split."""
    std: tuple[float, ...] = ()


class Rows:
    """Each stretch of `length` rows of a series."""

    def __init__(self, values: Tensor, length: int) -> None:
        self.values = values
        self.windows = values.unfold(0, length, 1).transpose(1, 2)  # a view

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: list[int]) -> Batch:
        return (self.windows.index_select(0, torch.as_tensor(indices)),)


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Windows | Rows
    val: Windows | Rows
    spec: Spec
    in_memory: bool
    """Whether a batch costs so little that a loader process would only add to it."""
    problems: tuple[str, ...] = ()
    """What was left out of your own files, or filled in, and why."""


def load(cfg: DataConfig) -> Data:
    """Read the text or the series.

    Raises:
        UserError: a file, a column or the tokenizer is missing or unfit, or there is too little of it.
    """
    return _text(cfg) if cfg.kind == "text" else _series(cfg)


def _text(cfg: DataConfig) -> Data:
    held_out = cfg.val_fraction or 0.02
    if cfg.path is None and cfg.tokenizer == "bytes":
        found = standard_library(held_out)
    else:
        from .readers import text

        found = text.read(cfg.path, cfg.pattern, cfg.tokenizer, held_out, cfg.max_unreadable, cfg.cache_dir)
    train, val = found.windows(cfg.context)
    spec = Spec(found.vocabulary, cfg.context, found.bytes_per_token, cfg.tokenizer)
    return Data(train, val, spec, found.in_memory, found.problems)


def _series(cfg: DataConfig) -> Data:
    """Hold out the end; no window of training reaches into it, and its first forecast is that of its first row."""
    values, columns, problems = _membrane(cfg) if cfg.path is None else _own_series(cfg, cfg.path)
    cut = len(values) - round(len(values) * (cfg.val_fraction or 0.2))
    length = cfg.window + cfg.horizon
    for name, count, least in (("train", cut, length), ("val", len(values) - cut, cfg.horizon)):
        if count < least:
            raise UserError(
                f"the {name} split of the series has {count} rows, and data.window={cfg.window} and data.horizon="
                f"{cfg.horizon} need {least} there: give more rows or a shorter window, or change data.val_fraction"
            )
    mean, std = values[:cut].mean(0), values[:cut].std(0)
    constant = [name for name, spread in zip(columns, std, strict=True) if spread == 0]
    problems += tuple(f"column {name} has one value only in the train split" for name in constant)
    spec = Spec(
        0, cfg.window, 1.0, "bytes", cfg.horizon, columns, tuple(mean.tolist()), tuple(np.where(std, std, 1).tolist())
    )
    rows = torch.from_numpy(values).float()
    return Data(Rows(rows[:cut], length), Rows(rows[cut - cfg.window :], length), spec, True, problems)


Table = tuple[NDArray[np.float64], tuple[str, ...], tuple[str, ...]]
"""Values (rows, columns), the columns' names, and what was left out or filled in."""


def _own_series(cfg: DataConfig, path: Path) -> Table:
    from .readers import series  # polars, whose import takes a while

    found = series.read(path, cfg.columns, cfg.time)
    return found.values, found.columns, found.problems


def _membrane(cfg: DataConfig) -> Table:
    """The voltage over a nerve cell's membrane while it fires, every 2 ms; it ships with matplotlib."""
    import matplotlib

    file = Path(matplotlib.get_data_path(), "sample_data", "membrane.dat")
    measured = np.fromfile(file, np.float32)[1000:11000:4]  # of every 0.5 ms; at rest before and after
    if cfg.columns not in ((), ("millivolts",)) or cfg.time is not None:
        cfg.refuse("columns", "the series that is built in has one column, millivolts, and none of the time")
    return 100 * measured.astype(np.float64)[:, np.newaxis], ("millivolts",), ()


class Prepare(nn.Module):
    """What happens to a batch on the device: inputs and targets come apart; rows are normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("mean", torch.tensor(spec.mean), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std), persistent=False)

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Take a batch as loaded, give it as the model wants it; sequences get no noise."""
        if self.spec.vocabulary:
            tokens = as_indices(batch[0])
            return tokens[:, :-1], tokens[:, 1:]
        rows = (batch[0] - self.mean) / self.std
        return rows[:, : self.spec.context], rows[:, self.spec.context :]


if __name__ == "__main__":
    from .tools.show import main

    main()
