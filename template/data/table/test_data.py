"""Tabular data: built-in tables, preparation, your own files, and errors."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
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
from ..readers import frame, sklearn_tables, table
from ..tools import view

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


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., data.Data]:
    """Write a table as CSV or Parquet, and load it with these config keys."""

    def make(content: Any, suffix: str = ".csv", **keys: Any) -> data.Data:
        file = tmp_path / f"table{suffix}"
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif isinstance(content, str):
            file.write_text(content, encoding="utf-8")
        elif suffix == ".parquet":
            pl.DataFrame(content).write_parquet(file)
        else:
            pl.DataFrame(content).write_csv(file)
        keys.setdefault("target", "label")
        return data.load(data.DataConfig(path=file, cache_dir=tmp_path / "cache", **keys))

    return make


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


def test_infinite_values_count_as_missing(load: Callable[..., data.Data]) -> None:
    heights = [float("inf") if index in (5, 30, 31, 32) else value for index, value in enumerate(columns()["height"])]
    found = load({**columns(), "height": heights}, ".parquet", ignore=("id", "age"))
    assert "height" in found.spec.indicated
    assert all(np.isfinite([*found.spec.mean, *found.spec.std]))
    assert any("4 infinite, which count as missing" in line for line in found.problems)


def test_dates_become_days(load: Callable[..., data.Data]) -> None:
    days = [date(1970, 1, 2) + timedelta(days=index) for index in range(ROWS)]
    hours = [datetime(1970, 1, 1) + timedelta(hours=index) for index in range(ROWS)]
    found = load({"day": days, "hour": hours, "label": columns()["label"]})
    numbers = torch.cat([load_all(found.train)[0], load_all(found.val)[0]])
    assert sorted(numbers[:, 0].tolist()) == list(range(1, ROWS + 1))
    assert max(numbers[:, 1].tolist()) == pytest.approx((ROWS - 1) / 24)


def test_durations_times_and_time_zones_become_numbers(load: Callable[..., data.Data]) -> None:
    zoned = pl.Series([datetime(1970, 1, 1) + timedelta(days=index) for index in range(ROWS)]).dt.replace_time_zone(
        "UTC"
    )
    spans = [timedelta(seconds=index) for index in range(ROWS)]
    times = [(datetime(1970, 1, 1) + timedelta(minutes=index)).time() for index in range(ROWS)]
    found = load({"zoned": zoned, "span": spans, "time": times, "label": columns()["label"]}, ".parquet")
    numbers = torch.cat([load_all(found.train)[0], load_all(found.val)[0]])
    assert numbers.amax(0).tolist() == pytest.approx([ROWS - 1, ROWS - 1, 60 * (ROWS - 1)])


def test_uninformative_columns_are_reported(load: Callable[..., data.Data]) -> None:
    content = {**columns(), "same": [7] * ROWS, "word": ["a"] * ROWS, "empty": [None] * ROWS}
    content |= {"name": [f"n{index % 50}" for index in range(ROWS)], "dose": ["x", *map(str, range(1, ROWS))]}
    found = load(content, ".parquet", min_count=1)
    for line in (
        "same is 7.0 in every row",
        "empty is missing",
        "word has 1 distinct",
        "id, which says nothing about new rows",
    ):
        assert any(line in problem for problem in found.problems), line
    assert any("column dose contains numbers, but is text because of x" in problem for problem in found.problems)
    assert not {"same", "word", "empty"} & {*found.spec.numeric, *found.spec.categorical}
    found = load(content, ".parquet")
    assert "id" not in found.spec.categorical


def test_rare_and_new_categories_are_unknown(load: Callable[..., data.Data], tmp_path: Path) -> None:
    pl.DataFrame({**columns(), "city": ["Paris"] * ROWS}).write_csv(tmp_path / "val.csv")
    cities = ["Lima" if index in (1, 2) else "Bonn" if index % 2 else "Rome" for index in range(ROWS)]
    found = load({**columns(), "city": cities}, val_path=tmp_path / "val.csv", ignore=("id",))
    assert found.spec.categories[0] == ("Bonn", "Rome")
    assert load_all(found.train)[1][:, 0].tolist()[:4] == [2, 0, 0, 1]
    assert load_all(found.val)[1][:, 0].unique().tolist() == [0]
    assert any("validation: column city: 60 of 60 values count as unknown ('Paris')" in line for line in found.problems)


@pytest.mark.parametrize(
    ("target", "keys", "classes"),
    [
        ("label", {}, ("no", "yes")),
        ("member", {}, ("false", "true")),
        ("floor", {}, ("0", "1", "2", "3")),
        ("floor", {"task": "regression"}, ()),
        ("height", {}, ()),
        ("age", {}, ()),
    ],
)
def test_task_is_inferred_or_configured(
    load: Callable[..., data.Data], target: str, keys: dict[str, Any], classes: tuple[str, ...]
) -> None:
    found = load(columns(), target=target, ignore=("id",), **keys)
    assert found.spec.classes == classes
    targets = load_all(found.train)[2]
    assert targets.dtype == (torch.int64 if classes else torch.float32)
    if not classes:
        assert found.spec.target_mean == pytest.approx(targets.mean().item())


def test_numeric_classes_are_sorted_by_value(load: Callable[..., data.Data], tmp_path: Path) -> None:
    grades = [(2, 10, 1)[index % 3] for index in range(ROWS)]
    pl.DataFrame({"x": range(ROWS), "label": [float(grade) for grade in grades]}).write_parquet(
        tmp_path / "val.parquet"
    )
    found = load({"x": range(ROWS), "label": grades}, val_path=tmp_path / "val.parquet")
    assert found.spec.classes == ("1", "2", "10")
    assert torch.equal(load_all(found.val)[2], load_all(found.train)[2])


def test_split_is_stratified(load: Callable[..., data.Data]) -> None:
    labels = ["rare"] * 10 + ["often"] * 190 + ["once"]
    found = load({"x": range(201), "label": labels}, val_fraction=0.2)
    assert found.spec.classes == ("often", "once", "rare")
    assert load_all(found.val)[2].bincount(minlength=3).tolist() == [38, 0, 2]
    assert any("too few rows for the validation split: once" in line for line in found.problems)


def test_rows_without_target_are_skipped_up_to_a_limit(load: Callable[..., data.Data]) -> None:
    labels = [None if index in (4, 9) else value for index, value in enumerate(columns()["label"])]
    found = load({**columns(), "label": labels})
    assert len(found.train) + len(found.val) == ROWS - 2
    assert any("2 of 60 rows" in line and "row 5, 10" in line for line in found.problems)
    with pytest.raises(UserError, match="2 of 60 rows .* have no label .* raise data.max_unreadable=0.01"):
        load({**columns(), "label": labels}, max_unreadable=0.01)


def test_table_is_cached_until_it_changes(load: Callable[..., data.Data], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    reader = frame.read_frame

    def note(file: Path) -> pl.DataFrame:
        read.append(file)
        return reader(file)

    monkeypatch.setattr(table, "read_frame", note)
    first = load(columns())
    cfg = data.DataConfig(path=read[0], target="label", cache_dir=read[0].parent / "cache")
    again = data.load(cfg)
    assert len(read) == 1
    assert (first.spec, first.problems) == (again.spec, again.problems)
    for one, other in zip(load_all(first.val), load_all(again.val), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    data.load(replace(cfg, val_fraction=0.5))
    assert len(read) == 2
    assert len(load(columns(40)).train) == 32
    assert len(read) == 3


def test_split_depends_only_on_the_order_of_rows(load: Callable[..., data.Data]) -> None:
    torch.manual_seed(1)
    first = load_all(load(columns()).val)
    torch.manual_seed(2)
    second = load_all(load({**columns(), "height": [0.5 * value for value in columns()["height"]]}).val)
    torch.testing.assert_close(first[0][:, 0], second[0][:, 0], equal_nan=True)
    torch.testing.assert_close(first[0][:, 1] / 2, second[0][:, 1])


CSV = "age,city,label\n" + "".join(f"{index},{'ab'[index % 2]},{'xy'[index % 3 > 1]}\n" for index in range(30))


@pytest.mark.parametrize(
    ("content", "suffix", "keys", "message"),
    [
        ("", ".csv", {}, "data.path=.*table.csv is empty"),
        ("\n\n", ".csv", {}, "cannot read .*empty CSV"),
        ("age,label\n", ".csv", {}, "has no rows below its header"),
        (CSV, ".xlsx", {}, "is not a supported table: give a file that ends in .csv, .tsv, .parquet"),
        (CSV, ".csv", {"target": None}, "data.target is null: name the column .*one of age, city, label"),
        (CSV, ".csv", {"target": "lable"}, "data.target: .* has no column lable; did you mean label"),
        (CSV, ".csv", {"categorical": ("town",)}, "data.categorical: .* has no column town"),
        (CSV, ".csv", {"ignore": ("ages",)}, "data.ignore: .* has no column ages; did you mean age"),
        (CSV, ".csv", {"ignore": ("age", "city")}, "has no column to predict data.target=label from"),
        (CSV, ".csv", {"task": "regression"}, "data.task=regression, but data.target=label contains 'x'"),
        (CSV.replace("y\n", "x\n"), ".csv", {}, "data.target=label is x in every row of .*it must vary"),
        (CSV.replace("y\n", "\n"), ".csv", {"max_unreadable": 1.0}, "data.target=label is x in every row"),
        (CSV.replace("city", "age"), ".csv", {}, "more than one column named age"),
        (CSV.encode() + "3,ü,x\n".encode("latin-1"), ".csv", {}, r"is not UTF-8 \(line 32"),
        (CSV.encode("utf-16"), ".csv", {}, r"is not UTF-8 \(line 1,"),
        (CSV.replace("age", "ägé").encode("latin-1"), ".csv", {}, r"is not UTF-8 \(line 1,"),
        (CSV + "1,a,x,more\n", ".csv", {}, "cannot read .*found more fields"),
        (b"PAR1 nonsense", ".parquet", {}, "cannot read .*parquet"),
        ({"x": [[1], [2]] * 9, "label": ["a", "b"] * 9}, ".parquet", {}, "column x of .* contains List.*data.ignore"),
        ({"x": [1, 2] * 9, "label": [date(2020, 1, 1)] * 18}, ".parquet", {}, "data.target=label contains Date"),
        ({"x": range(4), "label": ["a", "b"] * 2}, ".csv", {"val_fraction": 0.01}, "leaves one split empty"),
        ({"x": range(4), "label": ["a", "b", "c", "c"]}, ".csv", {}, "has 3 distinct values in 4 rows, too many"),
    ],
)
def test_invalid_file_is_an_error(
    load: Callable[..., data.Data], content: Any, suffix: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(content, suffix, **keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,city,label\n1,a,z\n", "has classes that data.path does not have, z"),
        ("age,label\n1,x\n", "data.val_path=.* has no column city, which data.path has"),
        (
            "age,city,label\nten,a,x\n",
            "column age of .*val.csv contains 'ten' in row 1, but the training data has numbers",
        ),
        ("age,city,label\n", "has no rows"),
        (None, "data.val_path=.*does not exist"),
    ],
)
def test_invalid_validation_file_is_an_error(
    load: Callable[..., data.Data], tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "val.csv").write_text(content)
    with pytest.raises(UserError, match=message):
        load(CSV, val_path=tmp_path / "val.csv")


def test_file_name_is_not_a_glob(tmp_path: Path) -> None:
    for name in ("table[1].csv", "table1.csv"):
        (tmp_path / name).write_text(CSV if "[" in name else "other\n1\n")
    found = data.load(data.DataConfig(path=tmp_path / "table[1].csv", target="label", cache_dir=tmp_path / "cache"))
    assert len(found.train) == 24


def test_python_booleans_are_categories(load: Callable[..., data.Data]) -> None:
    found = load(CSV.replace(",a,", ",True,").replace(",b,", ",False,"))
    assert len(found.spec.categories[0]) == 2


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


def test_corrupt_parquet_file_is_an_error(load: Callable[..., data.Data], tmp_path: Path) -> None:
    load(columns(), ".parquet", ignore=("id",))
    content = bytearray((tmp_path / "table.parquet").read_bytes())
    content[20:200] = b"\xff" * 180
    with pytest.raises(UserError, match="cannot read .*table.parquet"):
        load(bytes(content), ".parquet", ignore=("id",))


def test_missing_file_or_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data.path=.*nowhere.csv does not exist"):
        data.load(data.DataConfig(path=tmp_path / "nowhere.csv", target="y"))
    with pytest.raises(UserError, match="data.path=.* is a folder"):
        data.load(data.DataConfig(path=tmp_path, target="y"))


def test_separators_and_missing_values_are_detected(load: Callable[..., data.Data]) -> None:
    found = load(CSV.replace(",", ";").replace("\n3;", "\nNA;").replace("\n7;", "\n?;"))
    assert found.spec.numeric == ("age",)
    assert any("column age: 2 of 30 values missing" in line for line in found.problems)
    found = load("\ufeff" + CSV)
    assert found.spec.numeric == ("age",)
    found = load("".join(f"{index},{line}\n" if index else f",{line}\n" for index, line in enumerate(CSV.split())))
    assert found.spec.numeric == ("age",)
    assert any("column without a name" in line for line in found.problems)


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
