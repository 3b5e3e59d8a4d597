"""Sequences: text as bytes, or time series; built-in ones, or your own files.

This file is yours to edit.
"""

import sysconfig
from dataclasses import dataclass
from importlib.resources import files as files_of
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError

VALIDATION = """__future__ __hello__ __phello__ _markupbase _py_warnings antigravity cgitb cmd contextvars dis ensurepip
json modulefinder operator secrets shlex sqlite3 struct this token tty warnings"""
"""Modules of the standard library for validation, 2% of its bytes; they share no code with the others."""
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text or time series to load, and the lengths of its windows."""

    kind: Literal["text", "series"] = "text"
    """text: predict the next byte; series: forecast the next rows."""
    path: Path | None = None
    """Text file, or folder of them; or CSV or Parquet file with a row per time step, where a missing value repeats the
    last one. null: the source code of Python's standard library, or the membrane voltage of a nerve
    cell.
    """
    val_fraction: float | None = within("(0, 1)", None)
    """Fraction for validation, the end of your own text or of a series; null: 0.02 or 0.2.

    Built-in text ignores it.
    """
    context: int = within("[8, 1048576]", 128)
    """Text: context length, in bytes."""
    columns: tuple[str, ...] = ()
    """Series: input columns, which are also forecast; empty: all numeric columns."""
    decimal: Literal["point", "comma"] = "point"
    """Series: how numbers in CSV are written, 1.5 or 1,5; with comma, a semicolon separates the columns."""
    window: int = within("[2, 1048576]", 64)
    """Series: number of input rows."""
    horizon: int = within("[1, 65536]", 16)
    """Series: number of rows to forecast."""


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    vocabulary: int  # number of token ids; 0 for a series
    context: int  # number of input tokens, or of input rows of a series
    horizon: int = 0
    columns: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()  # of each column over the training split
    std: tuple[float, ...] = ()


class Windows(TensorDataset):
    """Windows of consecutive values: a batch is one tensor, (n, length), uint8; or (n, length, columns), fp32."""

    in_memory = True

    def __init__(self, values: Tensor, length: int, stride: int) -> None:
        if len(values) < length:
            raise UserError(
                f"data.path has {len(values)} values in a split, but a window has {length}: add data"
            )
        # a view: a batch copies whole windows
        super().__init__(values.unfold(0, length, stride).movedim(-1, 1))

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return (self.tensors[0].index_select(0, torch.as_tensor(indices)),)


def load(cfg: DataConfig) -> tuple[Windows, Windows, Spec]:
    """Return the training set, the validation set and their `Spec`; a series is standardized in float64."""
    if cfg.kind == "text":
        train, val = (Windows(part, cfg.context + 1, cfg.context) for part in _text(cfg))
        return train, val, Spec(256, cfg.context)
    frame = _series(cfg)
    cut = len(frame) - round(len(frame) * (cfg.val_fraction or 0.2))
    mean, std = frame[:cut].mean(), frame[:cut].std(ddof=0).where(frame[:cut].nunique() > 1, 1.0)
    rows = torch.tensor(((frame - mean) / std).to_numpy(), dtype=torch.float32)
    # the first row to forecast in validation is new
    parts = (
        rows[:cut],
        rows[max(cut - cfg.window, 0) :],
    )
    train, val = (Windows(part, cfg.window + cfg.horizon, 1) for part in parts)
    return (
        train,
        val,
        Spec(0, cfg.window, cfg.horizon, tuple(frame.columns), tuple(mean), tuple(std)),
    )


class Prepare(nn.Module):
    """Prepares a batch on the device: splits inputs from targets, both contiguous; nothing is augmented."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self, batch: tuple[Tensor, ...], training: bool, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Return tokens and the next ones, (n, context); or rows, (n, window, columns), and (n, horizon, columns)."""
        values, context = batch[0], self.spec.context
        if self.spec.vocabulary:
            return values[:, :-1].long(), values[:, 1:].long()
        return values[:, :context].contiguous(), values[:, context:].contiguous()


def _text(cfg: DataConfig) -> list[Tensor]:
    """Return the bytes for training and for validation."""
    if cfg.path is None:
        parts = bytearray(), bytearray()
        root = Path(sysconfig.get_paths()["stdlib"])
        for file in sorted(root.rglob("*.py")):
            names = file.relative_to(root).parts
            if not EXCLUDED.intersection(names):
                parts[names[0].removesuffix(".py") in VALIDATION.split()].extend(file.read_bytes())
    else:
        files = [cfg.path] if cfg.path.is_file() else sorted(cfg.path.rglob("*"))
        text = bytearray().join(file.read_bytes() for file in files if file.is_file())
        cut = round(len(text) * (1 - (cfg.val_fraction or 0.02)))
        parts = text[:cut], text[cut:]
    return [torch.tensor(np.frombuffer(part, np.uint8)) for part in parts]


def _series(cfg: DataConfig) -> pd.DataFrame:
    """Return the columns of a series, without missing values."""
    if cfg.path is None:
        file = files_of("matplotlib") / "mpl-data/sample_data/membrane.dat"
        # while it fires, every 2 ms
        measured = np.frombuffer(file.read_bytes(), np.float32)[1000:11000:4]
        return pd.DataFrame({"millivolts": 100 * measured.astype(np.float64)})
    separator, mark = (";", ",") if cfg.decimal == "comma" else (",", ".")
    try:
        parquet = cfg.path.suffix == ".parquet"
        frame = (
            pd.read_parquet(cfg.path)
            if parquet
            else pd.read_csv(cfg.path, sep=separator, decimal=mark)
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read data.path={cfg.path} as a table: {str(error).splitlines()[0]}"
        ) from error
    numeric = list(frame.select_dtypes("number"))
    numbers = r"[-+]?\d+([.,]\d{3})*([.,]\d+)?"
    texts = [
        name
        for name in frame
        if name not in numeric and frame[name].astype(str).str.fullmatch(numbers).any()
    ]
    chosen = list(cfg.columns) or numeric + texts
    if not chosen or not set(numeric).issuperset(chosen):
        raise UserError(
            f"in {cfg.path}, {chosen} are not all numbers: set data.columns, or data.decimal (is 1,5 1.5?)"
        )
    return frame[chosen].astype(np.float64).ffill().dropna()
