"""Tables: the built-in ones, and your own files."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from .. import data
from ..errors import UserError


def make_table() -> pd.DataFrame:
    """Return 60 rows with all kinds of columns and some missing values."""
    rows = []
    for number in range(60):
        row = {
            "age": None if number % 7 == 3 else 20 + number % 31,
            "height": 1.5 + number * 0.01,
            "city": ("Bonn", "Rome", "Oslo")[number % 3],
            "label": ("no", "yes")[number % 2],
        }
        rows.append(row)
    rows[0]["city"] = "Lima"
    return pd.DataFrame(rows)


def config(
    file: Path,
    table: pd.DataFrame,
    **keys: Any,
) -> data.DataConfig:
    """Write a table, and return a config that reads it."""
    if file.suffix == ".csv":
        table.to_csv(file, index=False)
    else:
        table.to_parquet(file)
    return data.DataConfig(path=file, target="label", **keys)


def heights(
    rows: data.Rows,
    spec: data.Spec,
) -> list[float]:
    """Return a column in its unit."""
    values = rows.tensors[0][:, 1] * spec.std[1] + spec.mean[1]
    rounded: list[float] = values.double().round(decimals=2).tolist()
    return rounded


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_own_file_is_loaded(tmp_path: Path, suffix: str) -> None:
    cfg = config(tmp_path / f"a{suffix}", make_table())
    train, val, spec = data.load(cfg)
    assert len(train) + len(val) == 60
    assert 5 < len(val) < 20
    assert spec.classes == ("no", "yes")
    assert spec.numeric == ("age", "height", "age is missing")
    assert spec.categorical == ("city",)
    assert spec.categories == (("Bonn", "Oslo", "Rome"),), "Lima is in one row only"
    assert data.describe(train, val, spec)[0].endswith("3 columns: 2 numbers, 1 categories (city)")
    parts = zip(train.tensors, val.tensors, strict=True)
    numbers, codes, labels = map(torch.cat, parts)
    order = numbers[:, 1].argsort()
    assert codes[order, 0].tolist()[:4] == [0, 3, 2, 1]
    assert labels[order].tolist() == [0, 1] * 30


def test_missing_numbers_become_the_mean_and_are_marked(tmp_path: Path) -> None:
    cfg = config(tmp_path / "a.csv", make_table())
    train, _, spec = data.load(cfg)
    numbers = train.tensors[0]
    is_missing = numbers[:, 2] == numbers[:, 2].max()
    assert 0 < is_missing.sum() < 10
    assert (numbers[is_missing, 0] == 0).all()
    assert numbers.mean(0).abs().max() < 1e-6
    assert spec.mean[0] == pytest.approx(33, abs=3)


def test_splits_may_have_their_own_files(tmp_path: Path) -> None:
    table = make_table()
    table.head(9).assign(height=3).to_csv(tmp_path / "val.csv")
    table.head(7).assign(height=4).to_parquet(tmp_path / "test.parquet")
    cfg = config(
        tmp_path / "a.csv",
        table,
        val_path=tmp_path / "val.csv",
        test_path=tmp_path / "test.parquet",
    )
    train, val, spec = data.load(cfg)
    test = data.load_test(cfg, spec)
    assert test
    assert len(train) == 60
    assert heights(val, spec) == [3] * 9
    assert heights(test, spec) == [4] * 7


def test_a_fraction_may_be_the_test_split(tmp_path: Path) -> None:
    cfg = config(tmp_path / "a.csv", make_table(), test_fraction=0.3)
    train, val, spec = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    assert min(len(train), len(val), len(test)) > 5
    found = heights(train, spec) + heights(val, spec) + heights(test, spec)
    assert sorted(found) == make_table()["height"].round(2).tolist()
    without = config(tmp_path / "a.csv", make_table())
    _, val, spec = data.load(without)
    assert set(heights(val, spec)) <= set(found), "the same with a test split"
    assert data.load_test(data.DataConfig()) is None


def test_regression_targets_are_standardized() -> None:
    cfg = data.DataConfig(builtin="diabetes")
    train, val, spec = data.load(cfg)
    assert len(train) == 354
    assert len(val) == 88
    assert spec.classes == ()
    assert spec.categories == (("1", "2"),)
    targets = train.tensors[2]
    assert targets.dtype == torch.float32
    assert targets.mean().item() == pytest.approx(0, abs=1e-6)
    assert targets.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    center = val.tensors[2].mean().item()
    assert spec.center == pytest.approx(center, abs=1e-6)


def test_a_run_that_is_resumed_keeps_its_columns_and_statistics(tmp_path: Path) -> None:
    table = make_table()
    _, _, spec = data.load(config(tmp_path / "a.csv", table))
    more = pd.concat([table, table.assign(height=99.0, city="Lima")])
    cfg = config(tmp_path / "a.csv", more)
    train, _, same = data.load(cfg, spec)
    assert same is spec
    assert len(train) > 60
    assert train.tensors[0][:, 1].max() > 100
    cfg = config(tmp_path / "a.csv", table.assign(weight=1.0))
    with pytest.raises(UserError, match="has a column 'weight', which the training has not"):
        data.load(cfg, spec)
