"""Sequences: text as bytes, or time series; built-in ones, or your own files.

This file is yours to edit; train.py uses `load`.
"""

import sysconfig
from dataclasses import dataclass
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError

VALIDATION = """__future__ __hello__ __phello__ _markupbase _py_warnings antigravity cgitb cmd
contextvars dis ensurepip json modulefinder operator secrets shlex sqlite3 struct this token tty
warnings"""
"""Modules of the standard library for validation, 2% of its bytes; they share no code with the
others."""
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text or time series to load, and the lengths of its windows."""

    kind: Literal["text", "series"] = "text"
    """text: predict the next byte; series: forecast the next rows."""
    path: Path | None = None
    """Text file, or folder of them; or CSV or Parquet file with a row per time step, where a
    missing value repeats the last one. null: the source code of Python's standard library, or the
    membrane voltage of a nerve cell."""
    val_fraction: float | None = within("(0, 1)", None)
    """Fraction for validation, the end of your own text or of a series; null: 0.02 or 0.2.

    Built-in text ignores it.
    """
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction for the test split, the end after that for validation; built-in text ignores it."""
    context: int = within("[8, 1048576]", 128)
    """Text: context length, in bytes."""
    columns: tuple[str, ...] = ()
    """Series: input columns, which are also forecast; empty: all numeric columns."""
    decimal: Literal["point", "comma"] = "point"
    """Series: how numbers in CSV are written, 1.5 or 1,5; with comma, a semicolon separates the
    columns."""
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
    """Windows of consecutive values.

    A batch is one tensor: (n, length), uint8; or (n, length, columns), float32.
    """

    in_memory = True

    def __init__(
        self,
        values: Tensor,
        length: int,
        stride: int,
    ) -> None:
        if len(values) < length:
            raise UserError(
                f"data.path has {len(values)} values in a split, but a window has {length}: "
                "add data"
            )
        windows = values.unfold(0, length, stride)  # a view
        super().__init__(windows.movedim(-1, 1))

    def __getitems__(self, indices: list[int]) -> Batch:
        windows = self.tensors[0]
        chosen = torch.as_tensor(indices)
        return (windows.index_select(0, chosen),)


class Prepare(nn.Module):
    """Prepares a batch on the device: splits inputs from targets; nothing is augmented."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self,
        batch: Batch,
        training: bool,
        generator: torch.Generator,
    ) -> Batch:
        """Return inputs and targets.

        Tokens and the next ones, (n, context), int64; or rows (n, window, columns) and the ones to
        forecast (n, horizon, columns). Both are contiguous.
        """
        values = batch[0]
        context = self.spec.context
        if self.spec.vocabulary:
            inputs = values[:, :-1].long()
            targets = values[:, 1:].long()
            return inputs, targets
        inputs = values[:, :context]
        targets = values[:, context:]
        return inputs.contiguous(), targets.contiguous()


def load(cfg: DataConfig) -> tuple[Windows, Windows, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    (train, val, _), spec = _read(cfg)
    return _windows(train, cfg), _windows(val, cfg), spec


def load_test(cfg: DataConfig) -> Windows | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    (_, _, test), _ = _read(cfg)
    if not cfg.test_fraction or not len(test):
        return None
    return _windows(test, cfg)


def _read(cfg: DataConfig) -> tuple[list[Tensor], Spec]:
    """Return the values for training, for validation and for the test, and the `Spec`."""
    if cfg.kind == "series":
        return _series(cfg)
    splits = _library() if cfg.path is None else _own_text(cfg, cfg.path)
    values = [torch.tensor(np.frombuffer(text, np.uint8)) for text in splits]
    return values, Spec(vocabulary=256, context=cfg.context)


def _windows(values: Tensor, cfg: DataConfig) -> Windows:
    if cfg.kind == "series":
        return Windows(
            values,
            cfg.window + cfg.horizon,
            stride=1,
        )
    return Windows(
        values,
        cfg.context + 1,
        stride=cfg.context,
    )


def _library() -> list[bytearray]:
    """Return the source code of the standard library, without a test split."""
    train = bytearray()
    val = bytearray()
    root = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(root.rglob("*.py")):
        names = file.relative_to(root).parts
        if EXCLUDED.intersection(names):
            continue
        module = names[0].removesuffix(".py")
        split = val if module in VALIDATION.split() else train
        split.extend(file.read_bytes())
    return [train, val, bytearray()]


def _own_text(
    cfg: DataConfig,
    path: Path,
) -> list[bytearray]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    text = bytearray()
    for file in files:
        if file.is_file():
            text.extend(file.read_bytes())
    train_end, val_end = _ends(
        len(text),
        cfg.val_fraction or 0.02,
        cfg,
    )
    return [
        text[:train_end],
        text[train_end:val_end],
        text[val_end:],
    ]


def _ends(
    count: int,
    val_fraction: float,
    cfg: DataConfig,
) -> tuple[int, int]:
    """Return where the training and the validation split end; the rest is the test split."""
    val_end = count - round(count * cfg.test_fraction)
    train_end = val_end - round(count * val_fraction)
    return train_end, val_end


def _series(cfg: DataConfig) -> tuple[list[Tensor], Spec]:
    """Return the rows of a series, standardized in float64, and the `Spec`."""
    frame = _membrane() if cfg.path is None else _own_series(cfg, cfg.path)
    train_end, val_end = _ends(
        len(frame),
        cfg.val_fraction or 0.2,
        cfg,
    )
    train = frame[:train_end]
    mean = train.mean()
    std = train.std(ddof=0).where(train.nunique() > 1, 1.0)
    standardized = (frame - mean) / std
    rows = torch.tensor(standardized.to_numpy(), dtype=torch.float32)
    # the first row that a split forecasts is its own; the inputs before it may not be
    val_begin = max(train_end - cfg.window, 0)
    test_begin = max(val_end - cfg.window, 0)
    spec = Spec(
        vocabulary=0,
        context=cfg.window,
        horizon=cfg.horizon,
        columns=tuple(frame.columns),
        mean=tuple(mean),
        std=tuple(std),
    )
    splits = [
        rows[:train_end],
        rows[val_begin:val_end],
        rows[test_begin:],
    ]
    return splits, spec


def _membrane() -> pd.DataFrame:
    """Return the voltage of a nerve cell while it fires, every 2 ms."""
    file = files_of("matplotlib") / "mpl-data/sample_data/membrane.dat"
    measured = np.frombuffer(file.read_bytes(), np.float32)
    volts = measured[1000:11000:4].astype(np.float64)
    return pd.DataFrame({"millivolts": 100 * volts})


def _own_series(cfg: DataConfig, path: Path) -> pd.DataFrame:
    """Return the numeric columns of a file, without missing values."""
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif cfg.decimal == "comma":
            frame = pd.read_csv(path, sep=";", decimal=",")
        else:
            frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read data.path={path} as a table: {reason}") from error
    numeric = set(frame.select_dtypes("number"))
    columns = list(cfg.columns)
    if not columns:
        columns = [str(name) for name in frame if name in numeric or _has_numbers(frame[name])]
    if not columns or not numeric.issuperset(columns):
        raise UserError(
            f"in {path}, {columns} are not all numbers: "
            "set data.columns, or data.decimal (is 1,5 1.5?)"
        )
    return frame[columns].astype(np.float64).ffill().dropna()


def _has_numbers(column: "pd.Series[Any]") -> bool:
    """Whether a column of text has a number, such as 1,234."""
    texts = column.astype(str)
    return bool(texts.str.fullmatch(r"[-+]?\d+([.,]\d{3})*([.,]\d+)?").any())
