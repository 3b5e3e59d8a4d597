"""Tabular data: built-in tables, preparation, your own files, and errors.

Delete this file and test_readers.py together with the example's data.py: nothing else needs them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn import datasets

from .. import data
from ..config import parse
from ..errors import UserError
from ..readers import sklearn_tables
from ..tools import view

pytestmark = pytest.mark.fast

ROWS = 60


def columns(rows: int = ROWS) -> dict[str, Any]:
    """A table with all kinds of columns and some missing values."""
    indices = range(rows)
    return {
        "id": [f"row{index}" for index in indices],
        "age": [None if index == 3 else 20 + index % 31 for index in indices],
        "height": [1.5 + index * 0.01 for index in indices],
        "city": [None if index % 15 == 14 else ("Bonn", "Rome", "Oslo")[index % 3] for index in indices],
        "floor": [index % 4 for index in indices],
        "member": [index % 2 == 0 for index in indices],
        "label": [("no", "yes")[index % 5 > 2] for index in indices],
        "price": [100 + index * 1.25 for index in indices],
    }


def write_and_load(folder: Path, content: Any, suffix: str = ".csv", **keys: Any) -> data.Data:
    """Write a table as CSV or Parquet, and load it with these config keys."""
    file = folder / f"table{suffix}"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif isinstance(content, str):
        file.write_text(content, encoding="utf-8")
    elif suffix == ".parquet":
        pl.DataFrame(content).write_parquet(file)
    else:
        pl.DataFrame(content).write_csv(file)
    keys.setdefault("target", "label")
    return data.load(data.DataConfig(path=file, cache_dir=folder / "cache", **keys))


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., data.Data]:
    """`write_and_load` in a temporary folder."""
    return partial(write_and_load, tmp_path)


def load_all(rows: data.Rows) -> tuple[torch.Tensor, ...]:
    """All rows of a split, in order."""
    return rows.__getitems__(list(range(len(rows))))


@pytest.mark.parametrize("name", ["breast_cancer", "diabetes"])
def test_built_in_tables_equal_those_of_scikit_learn(name: str) -> None:
    options = {"scaled": False} if name == "diabetes" else {}
    expected = getattr(datasets, f"load_{name}")(**options)
    found = getattr(sklearn_tables, f"load_{name}")()
    assert np.array_equal(found.values, expected.data)
    assert np.array_equal(found.target, expected.target)
    assert found.columns == tuple(expected.feature_names)
    assert found.classes == tuple(expected.get("target_names", ()))


def test_every_row_of_breast_cancer_is_in_one_split() -> None:
    found = data.load(data.DataConfig())
    assert (len(found.train), len(found.val)) == (455, 114)
    assert found.spec.classes == ("malignant", "benign")
    assert (len(found.spec.numeric), found.spec.categorical) == (30, ())
    numbers, codes, labels = found.train.__getitems__([5, 3])
    assert (numbers.dtype, codes.shape, labels.dtype) == (torch.float32, (2, 0), torch.int64)
    known = datasets.load_breast_cancer()
    both = torch.cat([load_all(found.train)[0], load_all(found.val)[0]])
    assert {tuple(row) for row in both.tolist()} == {tuple(row) for row in known.data.astype(np.float32).tolist()}
    assert load_all(found.val)[2].float().mean().item() == pytest.approx(known.target.mean(), abs=0.01)


def test_every_row_of_diabetes_is_in_one_split() -> None:
    cfg = data.DataConfig(builtin="diabetes")
    found = data.load(cfg)
    assert (len(found.train), len(found.val)) == (354, 88)
    assert (found.spec.classes, found.spec.categorical, found.spec.categories) == ((), ("sex",), (("1", "2"),))
    known = datasets.load_diabetes(scaled=False)
    both = torch.cat([load_all(found.train)[1], load_all(found.val)[1]])
    assert both.flatten().bincount().tolist() == [0, *np.bincount(known.data[:, 1].astype(int))[1:]]
    targets = load_all(found.val)[2]
    assert found.spec.center == pytest.approx(targets.mean().item(), rel=1e-6)


@pytest.mark.parametrize("builtin", ["breast_cancer", "diabetes"])
def test_prepare_standardizes_by_the_training_split(builtin: Any) -> None:
    cfg = data.DataConfig(builtin=builtin)
    found = data.load(cfg)
    numbers, _, targets = data.Prepare(found.spec, cfg)(load_all(found.train), True, torch.default_generator)
    assert numbers.mean(0).abs().max().item() < 1e-4
    assert numbers.std(0, correction=0).tolist() == pytest.approx([1] * len(found.spec.numeric), abs=1e-4)
    if not found.spec.classes:
        assert targets.mean().item() == pytest.approx(0, abs=1e-5)
        assert targets.std(correction=0).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_own_file_is_loaded(load: Callable[..., data.Data], suffix: str) -> None:
    found = load(columns(), suffix, categorical=("floor",), ignore=("id", "price"))
    spec = found.spec
    assert (len(found.train), len(found.val)) == (48, 12)
    assert (spec.numeric, spec.classes, spec.target) == (("age", "height"), ("no", "yes"), "label")
    assert spec.categorical == ("city", "floor", "member")
    assert spec.categories == (("Bonn", "Oslo", "Rome", None), ("0", "1", "2", "3"), ("false", "true"))
    assert any("column age: 1 of 60 values missing" in line for line in found.problems)
    numbers, codes, labels = (
        torch.cat(parts) for parts in zip(load_all(found.train), load_all(found.val), strict=True)
    )
    order = numbers[:, 1].argsort()
    assert numbers[order, 1].tolist() == pytest.approx(columns()["height"])
    assert numbers[order, 0].isnan().nonzero().flatten().tolist() == [3]
    cities = {"Bonn": 1, "Oslo": 2, "Rome": 3, None: 4}
    assert codes[order, 0].tolist() == [cities[name] for name in columns()["city"]]
    assert codes[order, 2].tolist() == [1 + value for value in columns()["member"]]
    assert labels[order].tolist() == [name == "yes" for name in columns()["label"]]


def test_missing_numbers_become_the_mean_and_an_indicator(load: Callable[..., data.Data]) -> None:
    ages = [None if index % 7 == 0 else float(index) for index in range(ROWS)]
    found = load({**columns(), "age": ages}, ignore=("id", "price"))
    assert found.spec.indicated == ("age",)
    loaded = load_all(found.train)
    prepared = data.Prepare(found.spec, data.DataConfig())(loaded, False, torch.default_generator)[0]
    assert prepared.shape[1] == len(found.spec.numeric) + 1
    missing = loaded[0][:, 0].isnan()
    assert missing.any()
    assert torch.equal(prepared[:, -1], missing.float())
    assert (prepared[missing, 0] == 0).all()
    assert prepared.isfinite().all()
    known = loaded[0][~missing, 0]
    assert found.spec.mean[0] == pytest.approx(known.mean().item())
    assert found.spec.std[0] == pytest.approx(known.std(correction=0).item())


def test_split_is_stratified(load: Callable[..., data.Data]) -> None:
    labels = ["rare"] * 10 + ["often"] * 190 + ["once"]
    found = load({"x": range(201), "label": labels}, val_fraction=0.2)
    assert found.spec.classes == ("often", "once", "rare")
    assert load_all(found.val)[2].bincount(minlength=3).tolist() == [38, 0, 2]
    assert any("too few rows for the validation split: once" in line for line in found.problems)


def test_split_depends_only_on_the_order_of_rows(load: Callable[..., data.Data]) -> None:
    torch.manual_seed(1)
    first = load_all(load(columns()).val)
    torch.manual_seed(2)
    second = load_all(load({**columns(), "height": [0.5 * value for value in columns()["height"]]}).val)
    torch.testing.assert_close(first[0][:, 0], second[0][:, 0], equal_nan=True)
    torch.testing.assert_close(first[0][:, 1] / 2, second[0][:, 1])


@pytest.mark.parametrize("keys", [{}, {"ignore": ("id", "price", "city", "floor", "member")}, {"target": "price"}])
def test_summary_and_plot(load: Callable[..., data.Data], tmp_path: Path, keys: dict[str, Any]) -> None:
    found = load(columns(), **keys)
    summary = view.summary(found)
    assert "no: 29, yes: 19" in summary["classes"] if found.spec.classes else "mean" in summary["target"]
    batch = data.Prepare(found.spec, data.DataConfig())(
        found.val.__getitems__([0, 1, 2]), False, torch.default_generator
    )
    view.plot(batch, found.spec).savefig(tmp_path / "data.png")
    assert (tmp_path / "data.png").stat().st_size > 5000


def test_table_without_numeric_columns_is_supported(load: Callable[..., data.Data], tmp_path: Path) -> None:
    found = load(columns(), ignore=("id", "age", "height", "floor", "price"))
    batch = data.Prepare(found.spec, data.DataConfig())(found.val.__getitems__([0, 1]), False, torch.default_generator)
    assert batch[0].shape == (2, 0)
    view.plot(batch, found.spec).savefig(tmp_path / "data.png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.target=x"], "data.target is x: it needs a file of your own"),
        (["--data.ignore=[x]"], "data.ignore is .*x.*: it needs a file of your own"),
        (["--data.task=regression"], "data.task is regression: data.builtin=breast_cancer is for classification"),
        (["--data.path=a.csv", "--data.target=x", "--data.ignore=[x]"], "x is data.target already"),
    ],
)
def test_contradictory_keys_are_an_error(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse("test", "", options)
