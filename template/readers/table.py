"""Your own table: the columns of a CSV or Parquet file, read once, as numbers and codes of categories."""

import difflib
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from ..data import Data, DataConfig, Rows, Spec, split, statistics
from ..errors import UserError
from .common import frozen, made_once, some
from .frame import check_file, read_frame

FEW = 20
"""Different whole numbers in a target that `data.task=auto` takes for classes."""
PARTS = ("numbers", "codes", "targets")

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


def read_table(cfg: DataConfig, path: Path) -> Data:
    """Read the table or tables, or what was made of them before.

    Raises:
        UserError: a file or a column is missing or unfit.
    """
    files = [check_file(path, "data.path")]
    if cfg.val_path is not None:
        files.append(check_file(cfg.val_path, "data.val_path"))
    aside = ("builtin", "cache", "cache_dir")
    settings = {key: value for key, value in asdict(cfg).items() if key not in aside}
    settings |= {"files": [str(file.absolute()) for file in files], "version": 1}
    folder, made = made_once(cfg.cache_dir, "table", settings, files, partial(_make, cfg, files))
    try:
        arrays = {name: [np.load(folder / f"{name}-{part}.npy") for part in PARTS] for name in ("train", "val")}
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"cannot read the cache {folder} ({error}): remove that folder") from error
    train, val = (Rows(*map(torch.from_numpy, arrays[name])) for name in ("train", "val"))
    spec = Spec(**{key: frozen(value) for key, value in made["spec"].items()})
    return Data(train, val, spec, in_memory=True, problems=tuple(made["problems"]))


def encode(frame: pl.DataFrame, spec: Spec, file: Path) -> Arrays:
    """A table's numbers, with NaN where one is missing, and its codes, with 0 for what is not among the categories.

    Raises:
        UserError: a column is missing, or holds text in the place of numbers.
    """
    lacking = [name for name in (*spec.numeric, *spec.categorical) if name not in frame.columns]
    if lacking:
        raise UserError(f"{file} has no column {some(lacking)}: it needs all that the model is trained on")
    numbers = np.empty((len(frame), len(spec.numeric)), np.float32)
    for place, name in enumerate(spec.numeric):
        numbers[:, place] = _numbers(frame[name], file)
    codes = np.zeros((len(frame), len(spec.categorical)), np.int64)
    for place, (name, known) in enumerate(zip(spec.categorical, spec.categories, strict=True)):
        places = list(range(1, len(known) + 1))
        codes[:, place] = _texts(frame[name]).replace_strict(list(known), places, default=0, return_dtype=pl.Int64)
    return numbers, codes


def unknown(frame: pl.DataFrame, codes: NDArray[np.int64], spec: Spec) -> list[str]:
    """What is not among the categories, a line a column."""
    found = []
    for place, name in enumerate(spec.categorical):
        others = frame[name].filter(pl.Series(codes[:, place] == 0, dtype=pl.Boolean))
        if len(others):
            names = ["missing" if text is None else repr(text) for text in _texts(others).unique(maintain_order=True)]
            found.append(f"column {name}: {len(others)} of {len(frame)} values count as unknown ({some(names, 3)})")
    return found


def _make(cfg: DataConfig, files: list[Path], folder: Path) -> dict[str, Any]:
    """Read, check, split and encode; write the arrays, and return what goes into the cache's manifest."""
    problems: list[str] = []
    frame = read_frame(files[0])
    target = _check_names(cfg, frame, files[0])
    classifies = _classifies(cfg, frame[target])
    frame = _with_target(frame, target, classifies, files[0], cfg.max_unreadable, problems)
    classes = tuple(sorted(frame[target].unique().to_list(), key=_by_number)) if classifies else ()
    if frame[target].n_unique() < 2:
        only = frame[target][0]
        raise UserError(f"data.target={target} is {only} in all of {files[0]}: there must be two values at least")
    if len(classes) > len(frame) / 2:
        raise UserError(
            f"data.target={target} has {len(classes)} different values in {len(frame)} rows, too many for classes: "
            "name another column, or set data.task=regression if it holds numbers"
        )
    if len(files) == 2:
        train, val = frame, read_frame(files[1])
        lacking = [name for name in frame.columns if name and name not in (*cfg.ignore, *val.columns)]
        if lacking:
            raise UserError(f"data.val_path={files[1]} has no column {some(lacking)}, which data.path has: add it")
        val = _with_target(val, target, classifies, files[1], cfg.max_unreadable, problems)
        new = sorted(set(val[target].unique()) - set(classes)) if classifies else []
        if new:
            raise UserError(f"data.val_path={files[1]} has labels that data.path lacks, {some(new)}: add rows of them")
    else:
        groups = torch.from_numpy(_targets(frame[target], classes)) if classifies else torch.zeros(len(frame))
        parts = split(groups, cfg.val_fraction)
        train, val = (frame[part.numpy()] for part in parts)
        whole = sorted(set(classes) - set(val[target].unique())) if classifies else []
        if whole:
            problems.append(f"classes with too few rows to hold one out, all in train: {some(whole)}")
    spec = _describe(cfg, train, classes, files[0], problems)
    problems += _gaps([train, val], spec)
    for name, part, file in (("train", train, files[0]), ("val", val, files[-1])):
        numbers, codes = encode(part, spec, file)
        targets = _targets(part[target], classes)
        arrays: tuple[NDArray[Any], ...] = (numbers, codes, targets)
        for kind, array in zip(PARTS, arrays, strict=True):
            np.save(folder / f"{name}-{kind}.npy", array)
    problems += [f"held out: {line}" for line in unknown(val, codes, spec)]  # of the last, which is val
    if not classes:
        spec = replace(spec, center=statistics(targets)[0])
    return {"spec": asdict(spec), "problems": problems}


def _check_names(cfg: DataConfig, frame: pl.DataFrame, file: Path) -> str:
    """The target's name, if it and all the others that the config names are columns."""
    columns = frame.columns
    if cfg.target is None:
        raise UserError(f"data.target is null: name the column of {file} to predict, one of {some(columns, 20)}")
    for key, names in (("target", [cfg.target]), ("categorical", cfg.categorical), ("ignore", cfg.ignore)):
        for name in names:
            if name not in columns:
                near = difflib.get_close_matches(name, columns, 1)
                meant = f"did you mean {near[0]}? " if near else ""
                raise UserError(f"data.{key}: {file} has no column {name}; {meant}it has {some(columns, 20)}")
    return cfg.target


def _classifies(cfg: DataConfig, target: pl.Series) -> bool:
    """Whether the target's values are classes: as configured, or by what they look like."""
    kind = target.dtype
    if kind.is_nested() or kind.is_temporal() or kind in (pl.Binary, pl.Object):
        raise UserError(f"data.target={target.name} holds {kind}: turn it into a number or into text")
    if cfg.task == "regression" and _is_text(target):
        raise UserError(f"data.task=regression, but data.target={target.name} holds {_a_text(target)}: give numbers")
    if cfg.task != "auto" or _is_text(target):
        return cfg.task != "regression"
    values = target.drop_nulls().cast(pl.Float64)
    values = values.filter(values.is_finite())
    different = values.n_unique()
    return bool((values == values.round()).all()) and different <= FEW and different * 5 <= len(values)


def _with_target(
    frame: pl.DataFrame, target: str, classifies: bool, file: Path, most: float, problems: list[str]
) -> pl.DataFrame:
    """The rows that have a target, as text for classes and as numbers otherwise."""
    values = _texts(frame[target]) if classifies else pl.Series(target, _numbers(frame[target], file)).fill_nan(None)
    gone = values.is_null()
    if gone.any():
        rows = [row + 1 for row in gone.arg_true()[:3]]
        said = f"{gone.sum()} of {len(frame)} rows of {file} have no {target} (row {some(rows)}, ...)"
        if gone.sum() > most * len(frame) or gone.all():
            raise UserError(f"{said}: fill or remove them, or raise data.max_unreadable={most:g}")
        problems.append(f"{said} and are left out")
    return frame.with_columns(values.alias(target)).filter(~gone)


def _describe(cfg: DataConfig, train: pl.DataFrame, classes: tuple[str, ...], file: Path, problems: list[str]) -> Spec:
    """Sort the columns into numbers and categories, and measure them on the train split."""
    moments: dict[str, tuple[float, float]] = {}
    categories: dict[str, tuple[str | None, ...]] = {}
    indicated = []
    for column in train.drop(str(cfg.target), *cfg.ignore):
        name, kind = column.name, column.dtype
        if not name:
            problems.append(f"the column without a name (an index?) in {file} is left out")
        elif kind.is_nested() or kind in (pl.Binary, pl.Object):
            raise UserError(f"column {name} of {file} holds {kind}: name it in data.ignore, or make numbers of it")
        elif name in cfg.categorical or _is_text(column):
            known = _categories(column, cfg.min_count, problems)
            categories |= {name: known} if known else {}
        else:
            values = _numbers(column, file)
            finite = values[np.isfinite(values)]
            gaps = 0 < len(finite) < len(values)
            if len(np.unique(finite)) < 2 and not gaps:
                problems.append(f"column {name} is {finite[0] if len(finite) else 'missing'} throughout: left out")
                continue
            moments[name] = mean, std = statistics(values)
            indicated += [name] * gaps
            if std < abs(mean) * 1e-5:
                problems.append(f"column {name} varies by too little for float32: subtract {mean:.6g} from it")
    if not moments and not categories:
        raise UserError(f"{file} has no column to predict data.target={cfg.target} from: all were left out")
    mean, std = (0.0, 1.0) if classes else statistics(_targets(train[str(cfg.target)], classes))
    return Spec(
        numeric=tuple(moments),
        mean=tuple(mean for mean, _ in moments.values()),
        std=tuple(std for _, std in moments.values()),
        indicated=tuple(indicated),
        categorical=tuple(categories),
        categories=tuple(categories.values()),
        target=str(cfg.target),
        classes=classes,
        target_mean=mean,
        target_std=std,
        center=0.0,
    )


def _categories(column: pl.Series, min_count: int, problems: list[str]) -> tuple[str | None, ...]:
    """Those that are frequent enough, in order; none, if the column has but one value or is an id."""
    counts = Counter(_texts(column).to_list())
    frequent = [text for text, count in counts.items() if count >= min_count]
    rare = len(counts) - len(frequent)
    said = f"column {column.name} has {len(counts)} different values in {len(column)} rows"
    if len(counts) == 1 or not frequent:
        problems.append(f"{said}: left out")
        return ()
    if len(counts) > len(column) / 2:
        problems.append(f"{said}: an id says nothing of new rows, so name it in data.ignore if it is one")
    if column.dtype == pl.String:
        numbers = column.drop_nulls().cast(pl.Float64, strict=False)
        others = column.drop_nulls().filter(numbers.is_null())
        if len(others) < len(numbers) / 2:
            problems.append(f"column {column.name} holds numbers, but is text for {some(others.unique().to_list(), 3)}")
    if rare:
        problems.append(f"{said}; the {rare} in fewer than data.min_count={min_count} of them count as unknown")
    return tuple(sorted(frequent, key=lambda text: (text is None, _by_number(text or ""))))


def _gaps(frames: list[pl.DataFrame], spec: Spec) -> list[str]:
    """Missing and infinite values in the columns of numbers and of categories, a line a column."""
    found = []
    for name in (*spec.numeric, *spec.categorical):
        columns = [frame[name] for frame in frames]
        missing = sum(column.null_count() for column in columns)
        infinite = 0
        for column in columns:
            if column.dtype.is_float():
                missing += int(column.is_nan().sum())
                infinite += int(column.is_infinite().sum())
        if missing or infinite:
            more = f", {infinite} infinite, which count as missing" if infinite else ""
            found.append(f"column {name}: {missing} of {sum(map(len, columns))} values missing{more}")
    return found


def _targets(column: pl.Series, classes: Collection[str]) -> NDArray[Any]:
    """Class indices, or float32."""
    if not classes:
        return column.to_numpy().astype(np.float32)
    indices = column.replace_strict(list(classes), list(range(len(classes))), return_dtype=pl.Int64)
    return indices.to_numpy().astype(np.int64)


def _is_text(column: pl.Series) -> bool:
    return column.dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum)


def _a_text(column: pl.Series) -> str:
    """An example of what is no number."""
    return repr(_texts(column).drop_nulls().unique(maintain_order=True).head(1).to_list()).strip("[]")


def _numbers(column: pl.Series, file: Path) -> NDArray[np.float32]:
    """A column as numbers, dates as days since 1970, with NaN for what is missing or infinite."""
    if column.dtype in (pl.Date, pl.Datetime):
        column = column.cast(pl.Datetime("us")).dt.epoch("us") / 86_400e6
    elif column.dtype in (pl.Duration, pl.Time):
        column = column.cast(pl.Int64) / {"ms": 1e3, "us": 1e6}.get(getattr(column.dtype, "time_unit", "ns"), 1e9)
    values = column.cast(pl.Float64, strict=False)
    lost = column.filter(values.is_null() & column.is_not_null())
    if len(lost):
        row = int((values.is_null() & column.is_not_null()).arg_true()[0]) + 1
        raise UserError(
            f"column {column.name} of {file} holds {lost[0]!r} in row {row}, where there were numbers: write a number, "
            "or nothing"
        )
    with np.errstate(over="ignore"):
        found = values.to_numpy().astype(np.float32)
    return np.where(np.isfinite(found), found, np.float32(np.nan))


def _texts(column: pl.Series) -> pl.Series:
    """A column as text, whole numbers without a point, with null for what is missing."""
    if column.dtype.is_float() or column.dtype.is_decimal():
        values = column.cast(pl.Float64)
        values = values.set(~values.is_finite(), None)
        whole = values.round() == values
        shorter = values.cast(pl.Int64, strict=False).cast(pl.String)
        return shorter.zip_with(whole & shorter.is_not_null(), values.cast(pl.String))
    return column.cast(pl.String)


def _by_number(text: str) -> tuple[bool, float, str]:
    """A key that sorts numbers by value, before other texts."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text
