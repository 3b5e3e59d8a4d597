"""Sequence data: text as tokens, or time series; built-in data sets, or your own files.

This file is yours to edit. The rest of the project uses `DataConfig`, `load` and `Prepare`; see contracts.py.
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
from .readers.common import packaged_file
from .readers.windows import Windows, as_indices, standard_library

Batch = tuple[Tensor, ...]
"""As loaded: tokens (n, context + 1), uint8, int16 or int32; or rows (n, window + horizon, columns), float32. As
prepared: inputs and targets (n, context), int64; or (n, window, columns) and (n, horizon, columns), normalized."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text or time series to load, and the lengths of its windows."""

    kind: Literal["text", "series"] = "text"
    """text: predict the next token; series: forecast the next rows."""
    path: Path | None = None
    """Text: file, folder (its files that match `pattern`), or glob; null: the source code of Python's standard library.
    Series: CSV or Parquet file; null: the membrane voltage of a nerve cell."""
    val_fraction: float | None = within("(0, 1)", None)
    """Fraction for validation: of the files, or the end of a single file or series; null: 0.02 for text, 0.2 for a
    series."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Maximum fraction of unreadable files, which are skipped and counted."""
    cache_dir: Path = Path(".cache")
    """Folder for data derived from your own files, such as decoded images."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in device memory and gather each batch there; for small data sets."""
    pattern: str = "*"
    """Text: files to read from a folder, at any depth, such as `*.md`."""
    tokenizer: str = "bytes"
    """Text: bytes; a tokenizer.json of Hugging Face tokenizers; or an encoding of tiktoken, such as gpt2."""
    context: int = within("[8, 1048576]", 128)
    """Text: context length, in tokens."""
    columns: tuple[str, ...] = ()
    """Series: input columns, which are also forecast; empty: all numeric columns."""
    time: str | None = None
    """Series: time column, which must increase and is not an input; null: none."""
    decimal: Literal["point", "comma"] = "point"
    """Series: what numbers in CSV files have before their fraction."""
    window: int = within("[2, 1048576]", 64)
    """Series: number of input rows."""
    horizon: int = within("[1, 65536]", 16)
    """Series: number of rows to forecast."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern or Path(self.pattern).is_absolute():
            self.refuse("pattern", "it must be a relative glob, such as *.txt")
        if self.time is not None and self.time in self.columns:
            self.refuse("time", "it must not be one of data.columns")


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` need to know about the data."""

    vocabulary: int
    """Number of token ids; 0 for a series."""
    context: int
    """Number of input tokens, or of input rows of a series."""
    bytes_per_token: float = 1.0
    """Of the validation text; makes bits per byte comparable between tokenizers."""
    tokenizer: str = "bytes"
    horizon: int = 0
    """Series: number of rows to forecast."""
    columns: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    """Mean of each column over the training split."""
    std: tuple[float, ...] = ()


class Rows:
    """Dataset of all windows of `length` consecutive rows of a series."""

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
    """Whether loading a batch is so cheap that worker processes would only slow it down."""
    problems: tuple[str, ...] = ()
    """What was skipped or filled, and other warnings, one line each."""


def load(cfg: DataConfig) -> Data:
    """Load the text or the series.

    Raises:
        UserError: a file, a column or the tokenizer is missing or unsuitable, or there is too little data.
    """
    return _text(cfg) if cfg.kind == "text" else _series(cfg)


def _text(cfg: DataConfig) -> Data:
    val_fraction = cfg.val_fraction or 0.02
    if cfg.path is None and cfg.tokenizer == "bytes":
        found = standard_library(val_fraction)
    else:
        from .readers import text

        found = text.read(cfg.path, cfg.pattern, cfg.tokenizer, val_fraction, cfg.max_unreadable, cfg.cache_dir)
    train, val = found.windows(cfg.context)
    spec = Spec(found.vocabulary, cfg.context, found.bytes_per_token, cfg.tokenizer)
    return Data(train, val, spec, found.in_memory, found.problems)


def _series(cfg: DataConfig) -> Data:
    """Use the end for validation: no training window reaches into it, and its first row is the first one forecast."""
    values, columns, problems = _membrane(cfg) if cfg.path is None else _own_series(cfg, cfg.path)
    cut = len(values) - round(len(values) * (cfg.val_fraction or 0.2))
    length = cfg.window + cfg.horizon
    for name, count, minimum in (("train", cut, length), ("val", len(values) - cut, cfg.horizon)):
        if count < minimum:
            raise UserError(
                f"the {name} split of the series has {count} rows, but data.window={cfg.window} and data.horizon="
                f"{cfg.horizon} need {minimum}: give more rows or a shorter window, or change data.val_fraction"
            )
    mean, std = values[:cut].mean(0), values[:cut].std(0)
    constant = [name for name, spread in zip(columns, std, strict=True) if spread == 0]
    problems += tuple(f"column {name} is constant in the training split" for name in constant)
    spec = Spec(
        0, cfg.window, 1.0, "bytes", cfg.horizon, columns, tuple(mean.tolist()), tuple(np.where(std, std, 1).tolist())
    )
    rows = torch.from_numpy(values).float()
    return Data(Rows(rows[:cut], length), Rows(rows[cut - cfg.window :], length), spec, True, problems)


Table = tuple[NDArray[np.float64], tuple[str, ...], tuple[str, ...]]
"""Values (rows, columns), column names, and problems."""


def _own_series(cfg: DataConfig, path: Path) -> Table:
    from .readers import series  # imported here because importing polars takes a while

    found = series.read(path, cfg.columns, cfg.time, cfg.decimal)
    return found.values, found.columns, found.problems


def _membrane(cfg: DataConfig) -> Table:
    """The membrane voltage of a nerve cell while it fires, every 2 ms; the file ships with matplotlib."""
    file = packaged_file("matplotlib", "mpl-data/sample_data/membrane.dat")
    measured = np.fromfile(file, np.float32)[1000:11000:4]  # sampled every 0.5 ms; at rest before and after
    if cfg.columns not in ((), ("millivolts",)) or cfg.time is not None:
        cfg.refuse("columns", "the built-in series has one column, millivolts, and no time column")
    return 100 * measured.astype(np.float64)[:, np.newaxis], ("millivolts",), ()


class Prepare(nn.Module):
    """Prepares a batch on the device: splits inputs from targets, and normalizes the rows of a series."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("mean", torch.tensor(spec.mean), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std), persistent=False)

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Turn a batch as loaded into inputs and targets, both contiguous; sequences are not augmented."""
        if self.spec.vocabulary:
            return as_indices(batch[0][:, :-1]), as_indices(batch[0][:, 1:])
        rows = batch[0][:, : self.spec.context], batch[0][:, self.spec.context :]
        return tuple((part - self.mean) / self.std for part in rows)
