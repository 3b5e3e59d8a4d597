"""Tables: the built-in ones, and your own files."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from .. import data


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


def config(file: Path, table: pd.DataFrame, **keys: Any) -> data.DataConfig:
    """Write a table, and return a config that reads it."""
    if file.suffix == ".csv":
        table.to_csv(file, index=False)
    else:
        table.to_parquet(file)
    return data.DataConfig(path=file, target="label", **keys)


def heights(rows: data.Rows) -> set[float]:
    return set(rows.tensors[0][:, 1].tolist())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_own_file_is_loaded(tmp_path: Path, suffix: str) -> None:
    cfg = config(tmp_path / f"a{suffix}", make_table())
    train, val, spec = data.load(cfg)
    assert len(train) == 48
    assert len(val) == 12
    assert spec.classes == ("no", "yes")
    assert list(spec.numeric) == ["age", "height", "age is missing"]
    assert spec.categories == {"city": ("Bonn", "Oslo", "Rome")}, "Lima is in one row only"
    parts = zip(train.tensors, val.tensors, strict=True)
    numbers, codes, labels = map(torch.cat, parts)
    order = numbers[:, 1].argsort()
    assert codes[order, 0].tolist()[:4] == [0, 3, 2, 1]
    assert labels[order].tolist() == [0, 1] * 30


def test_missing_numbers_become_the_mean_and_are_marked(tmp_path: Path) -> None:
    cfg = config(tmp_path / "a.csv", make_table())
    train, _, spec = data.load(cfg)
    prepare = data.Prepare(spec, cfg)
    numbers, _, _ = prepare(
        train.tensors,
        False,
        torch.Generator(),
    )
    missing = train.tensors[0][:, 0].isnan()
    assert missing.any()
    assert (numbers[missing, 0] == 0).all()
    assert numbers[missing, 2].min() > numbers[~missing, 2].max()


def test_splits_may_have_their_own_files(tmp_path: Path) -> None:
    table = make_table()
    table.head(9).assign(height=3).to_csv(tmp_path / "val.csv")
    table.head(7).assign(height=4).to_csv(tmp_path / "test.csv")
    cfg = config(
        tmp_path / "a.csv",
        table,
        val_path=tmp_path / "val.csv",
        test_path=tmp_path / "test.csv",
    )
    train, val, _ = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    assert len(train) == 60
    assert len(val) == 9
    assert len(test) == 7
    assert heights(val) == {3}
    assert heights(test) == {4}


def test_a_fraction_may_be_the_test_split(tmp_path: Path) -> None:
    cfg = config(tmp_path / "a.csv", make_table(), test_fraction=0.3)
    train, val, _ = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    assert len(train) == 30
    assert len(val) == 12
    assert len(test) == 18
    assert test.tensors[2].bincount().tolist() == [9, 9], "stratified"
    assert len(heights(train) | heights(val) | heights(test)) == 60
    assert data.load_test(data.DataConfig()) is None


def test_regression_targets_are_standardized() -> None:
    cfg = data.DataConfig(builtin="diabetes")
    train, val, spec = data.load(cfg)
    assert len(train) == 354
    assert len(val) == 88
    assert spec.classes == ()
    assert spec.categories == {"sex": ("1", "2")}
    targets = train.tensors[2]
    assert targets.dtype == torch.float32
    assert targets.mean().item() == pytest.approx(0, abs=1e-6)
    assert targets.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    center = val.tensors[2].mean().item()
    assert spec.center == pytest.approx(center, abs=1e-6)
