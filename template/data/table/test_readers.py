"""Your own tables: columns, targets, caches, and errors.

Delete this file together with the example's data.py: nothing else needs it.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from .. import data
from ..errors import UserError
from ..readers import frame, table
from .test_data import ROWS, columns, load_all, write_and_load


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., data.Data]:
    """`write_and_load` in a temporary folder."""
    return partial(write_and_load, tmp_path)


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


def test_rows_without_target_are_skipped_up_to_a_limit(load: Callable[..., data.Data]) -> None:
    labels = [None if index in (4, 9) else value for index, value in enumerate(columns()["label"])]
    found = load({**columns(), "label": labels})
    assert len(found.train) + len(found.val) == ROWS - 2
    assert any("2 of 60 rows" in line and "row 5, 10" in line for line in found.problems)
    with pytest.raises(UserError, match="2 of 60 rows .* have no label .* raise data.max_unreadable=0.01"):
        load({**columns(), "label": labels}, max_unreadable=0.01)


def decimal_commas(separator: str = ";") -> tuple[str, str]:
    """A table with decimal commas, and the same one with points."""
    rows = [(f"{index},5", f"1.{index:03},25", f"{index}", f"{index % 2}") for index in range(40)]
    commas, plain = ["a;b;c;note;label"], ["a;b;c;note;label"]
    for a, b, c, label in rows:
        commas.append(f'"{a}";"{b}";{c};x.{label};{label}')
        plain.append(f"{a.replace(',', '.')};{b.replace('.', '').replace(',', '.')};{c};x.{label};{label}")
    return "\n".join(commas).replace(";", separator), "\n".join(plain)


@pytest.mark.parametrize("separator", [";", ",", "\t"])
def test_decimal_commas_are_read_with_the_option(load: Callable[..., data.Data], separator: str) -> None:
    """Without it they are refused, and not taken for categories; unless they are named as such."""
    commas, plain = decimal_commas(separator)
    why = r"numbers with a comma in column a \('0,5'\), b \('1.000,25'\): set data.decimal=comma, or name"
    with pytest.raises(UserError, match=why):
        load(commas)
    found, expected = load(commas, decimal="comma"), load(plain)
    assert expected.spec.numeric == ("a", "b", "c")
    assert found.spec == expected.spec
    assert all(map(torch.equal, load_all(found.train), load_all(expected.train)))
    assert load(commas, categorical=("a",), ignore=("b",), min_count=1).spec.categorical == ("a", "note")


def test_text_that_has_some_numbers_with_a_comma_is_text(load: Callable[..., data.Data]) -> None:
    note = ["1,5", "2,5", "Paris, France"] * 20
    assert load({"a": range(60), "note": note, "label": [0, 1] * 30}, ignore=("note",)).spec.numeric == ("a",)
    notes = ["1,5", "Rome", "Paris, France"] * 20
    assert load({"a": range(60), "note": notes, "label": [0, 1] * 30}).spec.categorical == ("note",)


def test_table_is_cached_until_it_changes(load: Callable[..., data.Data], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    reader = frame.read_frame

    def note(file: Path, decimal: str) -> pl.DataFrame:
        read.append(file)
        return reader(file, decimal)

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
