"""Tables: what is loaded, what happens on the device, and what a bad file gives."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

from .. import data
from ..config import parse
from ..errors import UserError
from ..readers import frame, table
from ..tools import view

ROWS = 60


def columns(rows: int = ROWS) -> dict[str, Any]:
    """A table of all kinds of columns, with a gap here and there."""
    places = range(rows)
    return {
        "id": [f"row{place}" for place in places],
        "age": [None if place == 3 else 20 + place % 31 for place in places],
        "height": [1.5 + place * 0.01 for place in places],
        "city": [None if place % 15 == 14 else ("Bonn", "Rome", "Oslo")[place % 3] for place in places],
        "floor": [place % 4 for place in places],
        "member": [place % 2 == 0 for place in places],
        "label": [("no", "yes")[place % 5 > 2] for place in places],
        "price": [100 + place * 1.25 for place in places],
    }


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., data.Data]:
    """Write a table as CSV or Parquet, and load it with these keys of the config."""

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


def everything(rows: data.Rows) -> tuple[torch.Tensor, ...]:
    """All of a split, in order."""
    return rows.__getitems__(list(range(len(rows))))


def test_breast_cancer_is_all_there_once() -> None:
    found = data.load(data.DataConfig())
    assert (len(found.train), len(found.val)) == (455, 114)
    assert found.spec.classes == ("malignant", "benign")
    assert (len(found.spec.numeric), found.spec.categorical) == (30, ())
    numbers, codes, labels = found.train.__getitems__([5, 3])
    assert (numbers.dtype, codes.shape, labels.dtype) == (torch.float32, (2, 0), torch.int64)
    known = load_breast_cancer()
    both = torch.cat([everything(found.train)[0], everything(found.val)[0]])
    assert {tuple(row) for row in both.tolist()} == {tuple(row) for row in known.data.astype(np.float32).tolist()}
    assert everything(found.val)[2].float().mean().item() == pytest.approx(known.target.mean(), abs=0.01)


def test_diabetes_is_all_there_with_a_category() -> None:
    cfg = data.DataConfig(builtin="diabetes")
    found = data.load(cfg)
    assert (len(found.train), len(found.val)) == (354, 88)
    assert (found.spec.classes, found.spec.categorical, found.spec.categories) == ((), ("sex",), (("1", "2"),))
    known = load_diabetes(scaled=False)
    both = torch.cat([everything(found.train)[1], everything(found.val)[1]])
    assert both.flatten().bincount().tolist() == [0, *np.bincount(known.data[:, 1].astype(int))[1:]]
    targets = everything(found.val)[2]
    assert found.spec.center == pytest.approx(targets.mean().item(), rel=1e-6)


@pytest.mark.parametrize("builtin", ["breast_cancer", "diabetes"])
def test_preparing_standardises_by_the_train_split(builtin: Any) -> None:
    cfg = data.DataConfig(builtin=builtin)
    found = data.load(cfg)
    numbers, _, targets = data.Prepare(found.spec, cfg)(everything(found.train), True, torch.default_generator)
    assert numbers.mean(0).abs().max().item() < 1e-4
    assert numbers.std(0, correction=0).tolist() == pytest.approx([1] * len(found.spec.numeric), abs=1e-4)
    if not found.spec.classes:
        assert targets.mean().item() == pytest.approx(0, abs=1e-5)
        assert targets.std(correction=0).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_file_of_your_own(load: Callable[..., data.Data], suffix: str) -> None:
    found = load(columns(), suffix, categorical=("floor",), ignore=("id", "price"))
    spec = found.spec
    assert (len(found.train), len(found.val)) == (48, 12)
    assert (spec.numeric, spec.classes, spec.target) == (("age", "height"), ("no", "yes"), "label")
    assert spec.categorical == ("city", "floor", "member")
    assert spec.categories == (("Bonn", "Oslo", "Rome", None), ("0", "1", "2", "3"), ("false", "true"))
    assert any("column age: 1 of 60 values missing" in line for line in found.problems)
    numbers, codes, labels = (
        torch.cat(parts) for parts in zip(everything(found.train), everything(found.val), strict=True)
    )
    order = numbers[:, 1].argsort()
    assert numbers[order, 1].tolist() == pytest.approx(columns()["height"])
    assert numbers[order, 0].isnan().nonzero().flatten().tolist() == [3]
    cities = {"Bonn": 1, "Oslo": 2, "Rome": 3, None: 4}
    assert codes[order, 0].tolist() == [cities[name] for name in columns()["city"]]
    assert codes[order, 2].tolist() == [1 + value for value in columns()["member"]]
    assert labels[order].tolist() == [name == "yes" for name in columns()["label"]]


def test_gaps_become_the_mean_and_a_mark(load: Callable[..., data.Data]) -> None:
    gaps = [None if place % 7 == 0 else float(place) for place in range(ROWS)]
    found = load({**columns(), "age": gaps}, ignore=("id", "price"))
    assert found.spec.indicated == ("age",)
    loaded = everything(found.train)
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
    heights = [float("inf") if place in (5, 30, 31, 32) else value for place, value in enumerate(columns()["height"])]
    found = load({**columns(), "height": heights}, ".parquet", ignore=("id", "age"))
    assert "height" in found.spec.indicated
    assert all(np.isfinite([*found.spec.mean, *found.spec.std]))
    assert any("4 infinite, which count as missing" in line for line in found.problems)


def test_dates_become_days(load: Callable[..., data.Data]) -> None:
    days = [date(1970, 1, 2) + timedelta(days=place) for place in range(ROWS)]
    hours = [datetime(1970, 1, 1) + timedelta(hours=place) for place in range(ROWS)]
    found = load({"day": days, "hour": hours, "label": columns()["label"]})
    numbers = torch.cat([everything(found.train)[0], everything(found.val)[0]])
    assert sorted(numbers[:, 0].tolist()) == list(range(1, ROWS + 1))
    assert max(numbers[:, 1].tolist()) == pytest.approx((ROWS - 1) / 24)


def test_times_and_zones(load: Callable[..., data.Data]) -> None:
    zoned = pl.Series([datetime(1970, 1, 1) + timedelta(days=place) for place in range(ROWS)]).dt.replace_time_zone(
        "UTC"
    )
    spans = [timedelta(seconds=place) for place in range(ROWS)]
    times = [(datetime(1970, 1, 1) + timedelta(minutes=place)).time() for place in range(ROWS)]
    found = load({"zoned": zoned, "span": spans, "time": times, "label": columns()["label"]}, ".parquet")
    numbers = torch.cat([everything(found.train)[0], everything(found.val)[0]])
    assert numbers.amax(0).tolist() == pytest.approx([ROWS - 1, ROWS - 1, 60 * (ROWS - 1)])


def test_columns_that_say_nothing_are_reported(load: Callable[..., data.Data]) -> None:
    content = {**columns(), "same": [7] * ROWS, "word": ["a"] * ROWS, "empty": [None] * ROWS}
    content |= {"name": [f"n{place % 50}" for place in range(ROWS)], "dose": ["x", *map(str, range(1, ROWS))]}
    found = load(content, ".parquet", min_count=1)
    for line in ("same is 7.0 throughout", "empty is missing", "word has 1 different", "id says nothing of new rows"):
        assert any(line in problem for problem in found.problems), line
    assert any("column dose holds numbers, but is text for x" in problem for problem in found.problems)
    assert not {"same", "word", "empty"} & {*found.spec.numeric, *found.spec.categorical}
    found = load(content, ".parquet")
    assert "id" not in found.spec.categorical


def test_rare_and_new_categories_are_unknown(load: Callable[..., data.Data], tmp_path: Path) -> None:
    pl.DataFrame({**columns(), "city": ["Paris"] * ROWS}).write_csv(tmp_path / "val.csv")
    cities = ["Lima" if place in (1, 2) else "Bonn" if place % 2 else "Rome" for place in range(ROWS)]
    found = load({**columns(), "city": cities}, val_path=tmp_path / "val.csv", ignore=("id",))
    assert found.spec.categories[0] == ("Bonn", "Rome")
    assert everything(found.train)[1][:, 0].tolist()[:4] == [2, 0, 0, 1]
    assert everything(found.val)[1][:, 0].unique().tolist() == [0]
    assert any("held out: column city: 60 of 60 values count as unknown ('Paris')" in line for line in found.problems)


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
def test_the_task_is_inferred_or_set(
    load: Callable[..., data.Data], target: str, keys: dict[str, Any], classes: tuple[str, ...]
) -> None:
    found = load(columns(), target=target, ignore=("id",), **keys)
    assert found.spec.classes == classes
    targets = everything(found.train)[2]
    assert targets.dtype == (torch.int64 if classes else torch.float32)
    if not classes:
        assert found.spec.target_mean == pytest.approx(targets.mean().item())


def test_classes_that_are_numbers_are_in_order_and_read_alike(load: Callable[..., data.Data], tmp_path: Path) -> None:
    grades = [(2, 10, 1)[place % 3] for place in range(ROWS)]
    pl.DataFrame({"x": range(ROWS), "label": [float(grade) for grade in grades]}).write_parquet(
        tmp_path / "val.parquet"
    )
    found = load({"x": range(ROWS), "label": grades}, val_path=tmp_path / "val.parquet")
    assert found.spec.classes == ("1", "2", "10")
    assert torch.equal(everything(found.val)[2], everything(found.train)[2])


def test_each_class_is_held_out_in_its_share(load: Callable[..., data.Data]) -> None:
    labels = ["rare"] * 10 + ["often"] * 190 + ["once"]
    found = load({"x": range(201), "label": labels}, val_fraction=0.2)
    assert found.spec.classes == ("often", "once", "rare")
    assert everything(found.val)[2].bincount(minlength=3).tolist() == [38, 0, 2]
    assert any("too few rows to hold one out, all in train: once" in line for line in found.problems)


def test_rows_without_a_target_are_left_out_up_to_a_share(load: Callable[..., data.Data]) -> None:
    labels = [None if place in (4, 9) else value for place, value in enumerate(columns()["label"])]
    found = load({**columns(), "label": labels})
    assert len(found.train) + len(found.val) == ROWS - 2
    assert any("2 of 60 rows" in line and "row 5, 10" in line for line in found.problems)
    with pytest.raises(UserError, match="2 of 60 rows .* have no label .* raise data.max_unreadable=0.01"):
        load({**columns(), "label": labels}, max_unreadable=0.01)


def test_it_is_read_once_and_anew_when_it_changes(
    load: Callable[..., data.Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    reader = frame.read_frame

    def noted(file: Path) -> pl.DataFrame:
        read.append(file)
        return reader(file)

    monkeypatch.setattr(table, "read_frame", noted)
    first = load(columns())
    cfg = data.DataConfig(path=read[0], target="label", cache_dir=read[0].parent / "cache")
    again = data.load(cfg)
    assert len(read) == 1
    assert (first.spec, first.problems) == (again.spec, again.problems)
    for one, other in zip(everything(first.val), everything(again.val), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    data.load(replace(cfg, val_fraction=0.5))
    assert len(read) == 2
    assert len(load(columns(40)).train) == 32
    assert len(read) == 3


def test_the_split_depends_on_the_order_of_the_rows_alone(load: Callable[..., data.Data]) -> None:
    torch.manual_seed(1)
    first = everything(load(columns()).val)
    torch.manual_seed(2)
    second = everything(load({**columns(), "height": [0.5 * value for value in columns()["height"]]}).val)
    torch.testing.assert_close(first[0][:, 0], second[0][:, 0], equal_nan=True)
    torch.testing.assert_close(first[0][:, 1] / 2, second[0][:, 1])


CSV = "age,city,label\n" + "".join(f"{place},{'ab'[place % 2]},{'xy'[place % 3 > 1]}\n" for place in range(30))


@pytest.mark.parametrize(
    ("content", "suffix", "keys", "message"),
    [
        ("", ".csv", {}, "data.path=.*table.csv is empty"),
        ("\n\n", ".csv", {}, "cannot read .*empty CSV"),
        ("age,label\n", ".csv", {}, "has no rows below its header"),
        (CSV, ".xlsx", {}, "is no table that can be read: give a file that ends in .csv, .tsv, .parquet"),
        (CSV, ".csv", {"target": None}, "data.target is null: name the column .*one of age, city, label"),
        (CSV, ".csv", {"target": "lable"}, "data.target: .* has no column lable; did you mean label"),
        (CSV, ".csv", {"categorical": ("town",)}, "data.categorical: .* has no column town"),
        (CSV, ".csv", {"ignore": ("ages",)}, "data.ignore: .* has no column ages; did you mean age"),
        (CSV, ".csv", {"ignore": ("age", "city")}, "has no column to predict data.target=label from"),
        (CSV, ".csv", {"task": "regression"}, "data.task=regression, but data.target=label holds 'x'"),
        (CSV.replace("y\n", "x\n"), ".csv", {}, "data.target=label is x in all of .*two values"),
        (CSV.replace("y\n", "\n"), ".csv", {"max_unreadable": 1.0}, "data.target=label is x in all of"),
        (CSV.replace("city", "age"), ".csv", {}, "more than one column named age"),
        (CSV.encode() + "3,ü,x\n".encode("latin-1"), ".csv", {}, r"is not UTF-8 \(line 32"),
        (CSV.encode("utf-16"), ".csv", {}, r"is not UTF-8 \(line 1,"),
        (CSV.replace("age", "ägé").encode("latin-1"), ".csv", {}, r"is not UTF-8 \(line 1,"),
        (CSV + "1,a,x,more\n", ".csv", {}, "cannot read .*found more fields"),
        (b"PAR1 nonsense", ".parquet", {}, "cannot read .*parquet"),
        ({"x": [[1], [2]] * 9, "label": ["a", "b"] * 9}, ".parquet", {}, "column x of .* holds List.*data.ignore"),
        ({"x": [1, 2] * 9, "label": [date(2020, 1, 1)] * 18}, ".parquet", {}, "data.target=label holds Date"),
        ({"x": range(4), "label": ["a", "b"] * 2}, ".csv", {"val_fraction": 0.01}, "leaves one split empty"),
        ({"x": range(4), "label": ["a", "b", "c", "c"]}, ".csv", {}, "has 3 different values in 4 rows, too many"),
    ],
)
def test_bad_files(
    load: Callable[..., data.Data], content: Any, suffix: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(content, suffix, **keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ("age,city,label\n1,a,z\n", "has labels that data.path lacks, z"),
        ("age,label\n1,x\n", "data.val_path=.* has no column city, which data.path has"),
        ("age,city,label\nten,a,x\n", "column age of .*val.csv holds 'ten' in row 1, where there were numbers"),
        ("age,city,label\n", "has no rows"),
        (None, "data.val_path=.*does not exist"),
    ],
)
def test_bad_held_out_files(load: Callable[..., data.Data], tmp_path: Path, held_out: str | None, message: str) -> None:
    if held_out is not None:
        (tmp_path / "val.csv").write_text(held_out)
    with pytest.raises(UserError, match=message):
        load(CSV, val_path=tmp_path / "val.csv")


def test_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    for name in ("table[1].csv", "table1.csv"):
        (tmp_path / name).write_text(CSV if "[" in name else "other\n1\n")
    found = data.load(data.DataConfig(path=tmp_path / "table[1].csv", target="label", cache_dir=tmp_path / "cache"))
    assert len(found.train) == 24


def test_booleans_as_python_writes_them(load: Callable[..., data.Data]) -> None:
    found = load(CSV.replace(",a,", ",True,").replace(",b,", ",False,"))
    assert len(found.spec.categories[0]) == 2


@pytest.mark.parametrize("keys", [{}, {"ignore": ("id", "price", "city", "floor", "member")}, {"target": "price"}])
def test_it_can_be_shown(load: Callable[..., data.Data], tmp_path: Path, keys: dict[str, Any]) -> None:
    found = load(columns(), **keys)
    told = view.summary(found)
    assert "no: 29, yes: 19" in told["classes"] if found.spec.classes else "mean" in told["target"]
    batch = data.Prepare(found.spec, data.DataConfig())(
        found.val.__getitems__([0, 1, 2]), False, torch.default_generator
    )
    view.picture(batch, found.spec).savefig(tmp_path / "data.png")
    assert (tmp_path / "data.png").stat().st_size > 5000


def test_categories_alone_can_be_shown_and_prepared(load: Callable[..., data.Data], tmp_path: Path) -> None:
    found = load(columns(), ignore=("id", "age", "height", "floor", "price"))
    batch = data.Prepare(found.spec, data.DataConfig())(found.val.__getitems__([0, 1]), False, torch.default_generator)
    assert batch[0].shape == (2, 0)
    view.picture(batch, found.spec).savefig(tmp_path / "data.png")


def test_a_flipped_parquet_file(load: Callable[..., data.Data], tmp_path: Path) -> None:
    load(columns(), ".parquet", ignore=("id",))
    content = bytearray((tmp_path / "table.parquet").read_bytes())
    content[20:200] = b"\xff" * 180
    with pytest.raises(UserError, match="cannot read .*table.parquet"):
        load(bytes(content), ".parquet", ignore=("id",))


def test_a_missing_path_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data.path=.*nowhere.csv does not exist"):
        data.load(data.DataConfig(path=tmp_path / "nowhere.csv", target="y"))
    with pytest.raises(UserError, match="data.path=.* is a folder"):
        data.load(data.DataConfig(path=tmp_path, target="y"))


def test_other_separators_and_spellings_of_nothing(load: Callable[..., data.Data]) -> None:
    found = load(CSV.replace(",", ";").replace("\n3;", "\nNA;").replace("\n7;", "\n?;"))
    assert found.spec.numeric == ("age",)
    assert any("column age: 2 of 30 values missing" in line for line in found.problems)
    found = load("\ufeff" + CSV)
    assert found.spec.numeric == ("age",)
    found = load("".join(f"{place},{line}\n" if place else f",{line}\n" for place, line in enumerate(CSV.split())))
    assert found.spec.numeric == ("age",)
    assert any("column without a name" in line for line in found.problems)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.target=x"], "data.target is x: it is for a file of your own"),
        (["--data.ignore=[x]"], "data.ignore is .*x.*: it is for a file of your own"),
        (["--data.task=regression"], "data.task is regression: data.builtin=breast_cancer is for classification"),
        (["--data.path=a.csv", "--data.target=x", "--data.ignore=[x]"], "x is data.target already"),
    ],
)
def test_keys_that_contradict_each_other(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse("test", "", options)
