"""Your own table: a CSV or Parquet file, encoded once as numbers and category codes."""

import difflib
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from ..errors import UserError
from .columns import (
    as_numbers,
    as_texts,
    encode,
    encode_targets,
    example_text,
    is_text,
    missing_values,
    numbers_first,
    unknown_categories,
)
from .common import abbreviate, build_once, lists_to_tuples
from .frame import check_decimals, check_file, read_frame
from .tabular import Data, Rows, Spec, split, statistics

MAX_CLASSES = 20
"""Distinct integers in a target, at most, for `data.task=auto` to choose classification."""
PARTS = ("numbers", "codes", "targets")


class TableConfig(Protocol):
    """The fields of `DataConfig` that this reader uses."""

    @property
    def val_path(self) -> Path | None: ...

    @property
    def val_fraction(self) -> float: ...

    @property
    def target(self) -> str | None: ...

    @property
    def task(self) -> str: ...

    @property
    def categorical(self) -> tuple[str, ...]: ...

    @property
    def ignore(self) -> tuple[str, ...]: ...

    @property
    def min_count(self) -> int: ...

    @property
    def max_unreadable(self) -> float: ...

    @property
    def cache_dir(self) -> Path: ...


def read_table(cfg: TableConfig, path: Path) -> Data:
    """Read and encode the table, or load the cached result.

    Raises:
        UserError: a file or a column is missing or unsuitable.
    """
    files = [check_file(path, "data.path")]
    if cfg.val_path is not None:
        files.append(check_file(cfg.val_path, "data.val_path"))
    settings = {key: value for key, value in vars(cfg).items() if key not in ("builtin", "cache", "cache_dir")}
    settings |= {"files": [str(file.absolute()) for file in files], "version": 1}
    folder, manifest = build_once(cfg.cache_dir, "table", settings, files, partial(_build, cfg, files))
    arrays = {name: [np.load(folder / f"{name}-{part}.npy") for part in PARTS] for name in ("train", "val")}
    train, val = (Rows(*map(torch.from_numpy, arrays[name])) for name in ("train", "val"))
    spec = Spec(**{key: lists_to_tuples(value) for key, value in manifest["spec"].items()})
    return Data(train, val, spec, in_memory=True, problems=tuple(manifest["problems"]))


def _build(cfg: TableConfig, files: list[Path], folder: Path) -> dict[str, Any]:
    """Read, check, split and encode; write the arrays, and return the content of the cache's manifest."""
    problems: list[str] = []
    frame = read_frame(files[0], getattr(cfg, "decimal", "point"))  # a data.py of before 0.4 has no such option
    target = _check_names(cfg, frame, files[0])
    as_they_are = {*cfg.categorical, *cfg.ignore, *([target] if cfg.task == "classification" else [])}
    names = [name for name in frame.columns if name not in as_they_are]
    check_decimals(frame, names, files[0], ", or name it in data.categorical or data.ignore")
    classifies = _classifies(cfg, frame[target])
    frame = _drop_missing_targets(cfg, frame, target, classifies, files[0], problems)
    classes = tuple(sorted(frame[target].unique().to_list(), key=numbers_first)) if classifies else ()
    if frame[target].n_unique() < 2:
        raise UserError(f"data.target={target} is {frame[target][0]} in every row of {files[0]}: it must vary")
    if len(classes) > len(frame) / 2:
        raise UserError(
            f"data.target={target} has {len(classes)} distinct values in {len(frame)} rows, too many for classes: "
            "name another column, or set data.task=regression if it contains numbers"
        )
    if len(files) == 2:
        train, val = frame, _read_validation_file(cfg, frame, target, classes, files[1], problems)
    else:
        groups = torch.from_numpy(encode_targets(frame[target], classes)) if classifies else torch.zeros(len(frame))
        parts = split(groups, cfg.val_fraction)
        train, val = (frame[part.numpy()] for part in parts)
        only_train = sorted(set(classes) - set(val[target].unique())) if classifies else []
        if only_train:
            problems.append(f"classes with too few rows for the validation split: {abbreviate(only_train)}")
    spec = _describe(cfg, train, classes, files[0], problems)
    problems += missing_values([train, val], spec)
    for name, part, file in (("train", train, files[0]), ("val", val, files[-1])):
        numbers, codes = encode(part, spec, file)
        targets = encode_targets(part[target], classes)
        arrays: tuple[NDArray[Any], ...] = (numbers, codes, targets)
        for kind, array in zip(PARTS, arrays, strict=True):
            np.save(folder / f"{name}-{kind}.npy", array)
    problems += [f"validation: {message}" for message in unknown_categories(val, codes, spec)]  # codes of val
    if not classes:
        spec = replace(spec, center=statistics(targets)[0])
    return {"spec": asdict(spec), "problems": problems}


def _read_validation_file(
    cfg: TableConfig, train: pl.DataFrame, target: str, classes: tuple[str, ...], file: Path, problems: list[str]
) -> pl.DataFrame:
    val = read_frame(file, getattr(cfg, "decimal", "point"))
    missing = [name for name in train.columns if name and name not in (*cfg.ignore, *val.columns)]
    if missing:
        raise UserError(f"data.val_path={file} has no column {abbreviate(missing)}, which data.path has: add it")
    val = _drop_missing_targets(cfg, val, target, bool(classes), file, problems)
    new = sorted(set(val[target].unique()) - set(classes)) if classes else []
    if new:
        raise UserError(f"data.val_path={file} has classes that data.path does not have, {abbreviate(new)}: add rows")
    return val


def _check_names(cfg: TableConfig, frame: pl.DataFrame, file: Path) -> str:
    """Check that the columns named in the config exist; return the target's name."""
    columns = frame.columns
    if cfg.target is None:
        raise UserError(f"data.target is null: name the column of {file} to predict, one of {abbreviate(columns, 20)}")
    for key, names in (("target", [cfg.target]), ("categorical", cfg.categorical), ("ignore", cfg.ignore)):
        for name in names:
            if name not in columns:
                similar = difflib.get_close_matches(name, columns, 1)
                hint = f"did you mean {similar[0]}? " if similar else ""
                raise UserError(f"data.{key}: {file} has no column {name}; {hint}it has {abbreviate(columns, 20)}")
    return cfg.target


def _classifies(cfg: TableConfig, target: pl.Series) -> bool:
    """Whether the target's values are classes: as configured, or judging by the values."""
    kind = target.dtype
    if kind.is_nested() or kind.is_temporal() or kind in (pl.Binary, pl.Object):
        raise UserError(f"data.target={target.name} contains {kind}: convert it to numbers or text")
    if cfg.task == "regression" and is_text(target):
        raise UserError(f"data.task=regression, but data.target={target.name} contains {example_text(target)}")
    if cfg.task != "auto" or is_text(target):
        return cfg.task != "regression"
    values = target.drop_nulls().cast(pl.Float64)
    values = values.filter(values.is_finite())
    distinct = values.n_unique()
    return bool((values == values.round()).all()) and distinct <= MAX_CLASSES and distinct * 5 <= len(values)


def _drop_missing_targets(
    cfg: TableConfig, frame: pl.DataFrame, target: str, classifies: bool, file: Path, problems: list[str]
) -> pl.DataFrame:
    """The rows that have a target: text for classes, otherwise numbers."""
    column = frame[target]
    values = as_texts(column) if classifies else pl.Series(target, as_numbers(column, file)).fill_nan(None)
    missing = values.is_null()
    if missing.any():
        rows = [row + 1 for row in missing.arg_true()[:3]]
        message = f"{missing.sum()} of {len(frame)} rows of {file} have no {target} (row {abbreviate(rows)}, ...)"
        if missing.sum() > cfg.max_unreadable * len(frame) or missing.all():
            raise UserError(f"{message}: fill or remove them, or raise data.max_unreadable={cfg.max_unreadable:g}")
        problems.append(f"{message} and are skipped")
    return frame.with_columns(values.alias(target)).filter(~missing)


def _describe(cfg: TableConfig, train: pl.DataFrame, classes: tuple[str, ...], file: Path, problems: list[str]) -> Spec:
    """Divide the columns into numeric and categorical ones, and compute their statistics over the training split."""
    moments: dict[str, tuple[float, float]] = {}
    categories: dict[str, tuple[str | None, ...]] = {}
    indicated = []
    for column in train.drop(str(cfg.target), *cfg.ignore):
        name, kind = column.name, column.dtype
        if not name:
            problems.append(f"the column without a name (an index?) in {file} is ignored")
        elif kind.is_nested() or kind in (pl.Binary, pl.Object):
            raise UserError(f"column {name} of {file} contains {kind}: add it to data.ignore, or convert it to numbers")
        elif name in cfg.categorical or is_text(column):
            known = _categories(column, cfg.min_count, problems)
            categories |= {name: known} if known else {}
        else:
            values = as_numbers(column, file)
            finite = values[np.isfinite(values)]
            has_missing = 0 < len(finite) < len(values)
            if len(np.unique(finite)) < 2 and not has_missing:
                problems.append(f"column {name} is {finite[0] if len(finite) else 'missing'} in every row: ignored")
                continue
            moments[name] = mean, std = statistics(values)
            indicated += [name] * has_missing
            if std < abs(mean) * 1e-5:
                problems.append(f"column {name} varies too little for float32: subtract {mean:.6g} from it")
    if not moments and not categories:
        raise UserError(f"{file} has no column to predict data.target={cfg.target} from: all were ignored")
    mean, std = (0.0, 1.0) if classes else statistics(encode_targets(train[str(cfg.target)], classes))
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
    """The frequent categories, sorted; empty if the column has only one value or none is frequent."""
    counts = Counter(as_texts(column).to_list())
    frequent = [text for text, count in counts.items() if count >= min_count]
    rare = len(counts) - len(frequent)
    message = f"column {column.name} has {len(counts)} distinct values in {len(column)} rows"
    if len(counts) == 1 or not frequent:
        problems.append(f"{message}: ignored")
        return ()
    if len(counts) > len(column) / 2:
        problems.append(f"{message}: if it is an id, which says nothing about new rows, add it to data.ignore")
    if column.dtype == pl.String:
        numbers = column.drop_nulls().cast(pl.Float64, strict=False)
        others = column.drop_nulls().filter(numbers.is_null())
        if len(others) < len(numbers) / 2:
            texts = abbreviate(others.unique().to_list(), 3)
            problems.append(f"column {column.name} contains numbers, but is text because of {texts}")
    if rare:
        problems.append(f"{message}; the {rare} in fewer than data.min_count={min_count} rows count as unknown")
    return tuple(sorted(frequent, key=lambda text: (text is None, numbers_first(text or ""))))
