"""Your own time series: columns, missing values, and errors.

Delete this file together with the example's data.py: nothing else needs it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .. import data
from ..errors import UserError
from .test_data import series, write


def test_other_columns_are_ignored_and_reported(tmp_path: Path) -> None:
    found = data.load(series(write(tmp_path / "a.csv"), time="price"))
    assert found.spec.columns == ("load",)
    assert found.problems == (
        "column when is ignored: it is not numeric",
        "column note is ignored: it is not numeric",
    )


def test_missing_values_are_forward_filled_and_reported(tmp_path: Path) -> None:
    values: list[Any] = [*[None] * 3, 5.0, None, float("nan"), 7.0, float("inf"), *range(192)]
    write(tmp_path / "a.parquet", a=values)
    found = data.load(series(tmp_path / "a.parquet", columns=("a", "price")))
    assert isinstance(found.train, data.Rows)
    assert found.train.values[:7].tolist() == [[5, 3], [5, 4], [5, 5], [7, 6], [7, 7], [0, 8], [1, 9]]
    assert found.problems == (
        "column a: 6 of 200 values were missing and are forward-filled",
        "the first 3 rows are skipped: a column has no value yet",
    )


def test_constant_column_is_reported_and_stays_finite(tmp_path: Path) -> None:
    cfg = series(write(tmp_path / "a.csv", flat=[4] * 200), columns=("flat", "load"))
    found = data.load(cfg)
    assert found.problems == ("column flat is constant in the training split",)
    rows, _ = data.Prepare(found.spec, cfg)(found.train.__getitems__([0]), False, torch.Generator())
    assert rows[0, :, 0].tolist() == [0] * 12


def test_decimal_commas_are_read_with_the_option(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["load", *(f"{index},5" for index in range(200))]))
    found = data.load(series(file, decimal="comma"))
    assert isinstance(found.train, data.Rows)
    assert found.train.values[:3].tolist() == [[0.5], [1.5], [2.5]]
    file.write_text(file.read_text().replace("load", "load;").replace(",5", ",5;x"))
    with pytest.raises(UserError, match=r"numbers with a comma in column load \('0,5'\): set data.decimal=comma"):
        data.load(series(file))


def write_bytes(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (lambda folder: folder / "nowhere.csv", {}, "nowhere.csv does not exist"),
        (lambda folder: folder, {}, "is a folder: give a file"),
        (lambda folder: write_bytes(folder / "a.xls", b"x"), {}, "ends in .csv, .tsv, .parquet"),
        (lambda folder: write_bytes(folder / "a.csv", b""), {}, "a.csv is empty"),
        (lambda folder: write_bytes(folder / "a.csv", b"a,b\n"), {}, "no rows below its header"),
        (
            lambda folder: write_bytes(folder / "a.csv", "a,größe\n1,2\n".encode("latin-1")),
            {},
            r"is not UTF-8 \(line 1,",
        ),
        (lambda folder: write_bytes(folder / "a.csv", b"a,b,a\n1,2,3\n"), {}, "has more than one column named a"),
        (lambda folder: write_bytes(folder / "a.csv", b"a,b\n1,2\n3,4,5,6\n"), {}, "cannot read .*a.csv"),
        (lambda folder: write_bytes(folder / "a.parquet", b"PAR1 no"), {}, "cannot read .*a.parquet"),
        (lambda folder: write(folder / "a.csv"), {"columns": ("load", "wind")}, "has no column wind: it has when"),
        (lambda folder: write(folder / "a.csv"), {"columns": ("note",)}, "column note is not numeric .*'dry'"),
        (lambda folder: write_bytes(folder / "a.csv", b"a\nx\ny\n"), {}, "all columns are not numeric"),
        (lambda folder: write(folder / "a.csv", a=[None] * 200), {"columns": ("a",)}, "column a"),
        (lambda folder: write(folder / "a.csv"), {"time": "date"}, "has no column date"),
        (lambda folder: write(folder / "a.csv"), {"time": "note"}, "time=note .* neither dates nor numbers, but 'dry'"),
        (
            lambda folder: write(folder / "a.csv", at=[*range(100), 98, *range(100, 199)]),
            {"time": "at"},
            "does not increase at row 100, 98: sort",
        ),
        (lambda folder: write(folder / "a.csv", at=[None, *range(199)]), {"time": "at"}, "not increase at row 0"),
        (lambda folder: write(folder / "a.csv", rows=18), {}, "train split .* 14 rows, .*window=12.*need 16:"),
        (lambda folder: write(folder / "a.csv"), {"val_fraction": 0.01}, "val split .* 2 rows, .*need 4:"),
    ],
)
def test_invalid_series_is_an_error(
    tmp_path: Path, make: Callable[[Path], Path], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        data.load(series(make(tmp_path), **values))
