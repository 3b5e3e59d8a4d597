"""Series: files that cannot be read, and the kinds of columns."""

from collections.abc import Callable
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from engine import Package

MODEL = "lstm"


def test_dates_and_words_are_ignored(p: Package, tmp_path: Path) -> None:
    project = p
    dates = pd.date_range("2024-01-01", periods=300, freq="h").astype(str)
    frame = pd.DataFrame(
        {
            "when": dates,
            "day": "01.02.2024",
            "load": range(300),
            "wet": True,
        }
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    _, _, spec = project.data.load(
        project.data.DataConfig(
            kind="series",
            path=tmp_path / "a.csv",
            window=8,
            horizon=2,
        )
    )
    assert spec.columns == ("load",)
    assert spec.left_out == ("day", "wet")


@pytest.mark.parametrize(
    ("names", "keys", "expected"),
    [
        (["a.md", "b/c"], {"val_fraction": 0.1}, "training: 360 bytes of 2 files; validation: 40"),
        (["a.md", ".b", ".c/d.md", "desktop.ini"], {"val_fraction": 0.1}, "training: 180 bytes;"),
        (["train/a", "valid/b", "test/c"], {}, "training: 200 bytes; validation: 200 bytes;"),
        (["a/train", "a/eval", "b/train", "b/val"], {}, "; validation: 400 bytes of 2 files;"),
        (["a", "b/train", "b/val"], {}, "such as a: give data.path="),
        (["train", "test"], {"val_fraction": 0.1}, "training: 180 bytes; validation: 20 bytes;"),
        ([".b", "Thumbs.db"], {}, "has no files that match *: give text files"),
        ([], {}, "has no files that match *: give text files"),
        (["a.md"], {}, "the validation split has 4 bytes, but a window has 9 (data.context + 1)"),
        (["a.md"], {"path": Path("")}, "data.path is empty, or the current folder: give the fold"),
        (["a.md"], {"path": Path("~/none")}, f"data.path={Path.home()}/none does not exist: give"),
    ],
)
def test_own_text(
    p: Package,
    tmp_path: Path,
    names: list[str],
    keys: dict[str, Any],
    expected: str,
) -> None:
    data = p.data
    error = p.errors.UserError
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 200)
    try:
        cfg = data.DataConfig(**{"path": tmp_path, "context": 8, **keys})
        said = "\n".join(data.describe(*data.load(cfg)))
    except error as raised:
        said = str(raised)
    assert expected in said


def test_a_decimal_comma_is_read_with_the_option_and_large_numbers_keep_their_differences(
    p: Package, tmp_path: Path
) -> None:
    """In float32, numbers around 1e9 differ by 64 at least."""
    project = p
    file = tmp_path / "a.csv"
    file.write_text("load;note\n" + "".join(f"{10**9 + index},5;x\n" for index in range(200)))
    cfg = project.data.DataConfig(
        kind="series",
        path=file,
        window=12,
        horizon=4,
        decimal="comma",
    )
    train, _, spec = project.data.load(cfg)
    assert spec.columns == ("load",)
    assert spec.mean[0] == pytest.approx(1e9 + 80, abs=0.01)
    assert train.__getitems__([0])[0][0, :, 0].unique().numel() == 16


def write(
    file: Path,
    rows: int = 200,
    **others: Any,
) -> Path:
    """Write a table with two numeric columns and one of words."""
    columns = {
        "load": range(10, 10 + rows),
        "price": range(rows),
        "note": "dry",
        **others,
    }
    pd.DataFrame(columns).to_csv(file, index=False)
    return file


def test_missing_values_repeat_the_last_one_and_constants_are_zero(
    p: Package, tmp_path: Path
) -> None:
    data = p.data
    holes = [None, 5.0, None, *range(197)]
    file = write(tmp_path / "a.csv", a=holes, flat=0.1)
    cfg = data.DataConfig(
        kind="series",
        path=file,
        window=12,
        horizon=4,
        columns=("a", "flat"),
    )
    train, _, spec = data.load(cfg)
    rows = train.__getitems__([0])[0][0]
    values = rows[:3, 0] * spec.std[0] + spec.mean[0]
    assert values.tolist() == pytest.approx([5.0, 5.0, 0.0], abs=1e-4)
    assert rows[:, 1].abs().max() < 1e-6


DATES = pd.date_range("2024-01-01", periods=200, freq="h")


def csv_of(
    cell: Callable[[int], Any] = lambda row: row % 7 + 0.25,
    date: Callable[[int], Any] = lambda row: DATES[row],
    header: str = "when,load,note",
    rows: int = 100,
) -> str:
    """Return a series with these cells and dates, and a column of words."""
    lines = [f"{date(row)},{cell(row)},dry" for row in range(rows)]
    return "\n".join([header, *lines, ""])


def once(odd: Any, row: int = 5) -> Callable[[int], Any]:
    """Return cells that repeat, but for one, by default in row 7 of the file."""
    return lambda number: odd if number == row else number % 7 + 0.25


PLAIN = "1 columns: load; left out: note\n"
HOURLY = f"{PLAIN}training: 2024-01-01 00:00:00 to 2024-01-04 07:00:00; validation: 2024-01-04 08:"


OTHER_FORMS = ("%Y-%m-%d %I:%M %p", "%a, %d %b %Y", "%a %b %d %Y", "%d%b%Y", "%d. %B %Y")


def falling(form: str) -> str:
    """Return a series of weeks, of which the newest is in the first row."""
    weeks = pd.date_range("2024-01-01", freq="7D", periods=20)[::-1]
    frame = pd.DataFrame({"load": range(5, 105, 5), "when": weeks.strftime(form)})
    return frame.to_csv(index=False)


@pytest.mark.parametrize(
    ("content", "keys", "expected"),
    [
        (csv_of(), {}, HOURLY),
        (csv_of(), {}, "step 01:00:00; windows: 8 rows forecast the next 4"),
        (csv_of().replace("\n", ",\n"), {}, HOURLY),
        (csv_of().replace("dry\n", "dry,\n"), {}, HOURLY),
        (csv_of().replace(",", ";"), {}, HOURLY),
        (csv_of(date=lambda row: f"{DATES[row].isoformat()}Z"), {}, HOURLY),
        (csv_of(date=lambda row: f"{DATES[row]:%d.%m.%Y %H:%M}"), {}, HOURLY),
        (csv_of(date=lambda row: f"{DATES[row]:%m/%d/%Y %H:%M}"), {}, HOURLY),
        (csv_of(date=lambda row: f"{DATES[row * 2]:%Y-%m-%d %H:%M}"), {}, "step 02:00:00; windows"),
        (csv_of(date=lambda row: f"{DATES[row]:%d/%m/%Y %H:%M:%S}"), {}, HOURLY),
        (csv_of(date=lambda row: f"{DATES[row]:%d-%b-%Y %I:%M %p}"), {}, HOURLY),
        (csv_of(date=lambda row: row + row // 50), {}, "1 columns: load; left out: when, note"),
        (csv_of(date=lambda row: DATES[row + row // 50]), {}, "step 01:00:00 to 02:00:00; windows"),
        (csv_of(date=lambda row: f"2024-{row // 28 + 1}-{row % 28 + 1}"), {}, "step 1 days to "),
        (
            csv_of(date=lambda row: row),
            {},
            "1 columns: load; left out: when, note\ntraining: rows 2",
        ),
        (
            csv_of(date=lambda row: row),
            {"columns": ("when",)},
            "1 columns: when; left out: load, n",
        ),
        (
            csv_of(date=lambda row: 1_700_000_000 + 60 * row),
            {},
            "1 columns: load; left out: when, n",
        ),
        (csv_of(date="{:04}".format), {}, f"{PLAIN}".replace(": note", ": when, note")),
        (
            csv_of(date=lambda row: f"{row // 4:02}{row % 4 * 15:02}"),
            {},
            "left out: when, note\ntraining: rows 2",
        ),
        (csv_of(lambda row: 20240101 + row // 9, lambda row: row), {}, "1 columns: load"),
        (
            csv_of(lambda row: 20240101 + row // 28 * 100 + row % 28, lambda row: row % 7, "a,b,c"),
            {},
            "1 columns: a; left out: c\ntraining: 2024-01-01",
        ),
        (
            csv_of(date=lambda row: row).replace("dry", "Jan 2024"),
            {},
            "1 columns: load; left out: when, note\ntraining: rows 2",
        ),
        (
            csv_of(date=lambda row: row if row != 5 else 4).replace("dry\n", "{}\n").format(*DATES),
            {},
            "1 columns: load; left out: when\ntraining: 2024-01-01 00",
        ),
        (csv_of(date=lambda row: 1e-12 * row**2), {}, "2 columns: when, load"),
        (csv_of(header=",load,note"), {}, f"{PLAIN}training: 2024-01-01 00:00:00 to"),
        (csv_of(once("")), {}, "left out: note; 1 missing values repeat the last one"),
        (csv_of(once("?")), {}, "left out: note; 1 missing values repeat the last one"),
        (csv_of(once("", 0)), {}, "training: 2024-01-01 01:00:00 to"),
        (
            csv_of(lambda row: "" if row < 9 else row % 7),
            {},
            "left out: the first 9 rows, where a column has no value yet, note\n",
        ),
        (csv_of().encode("utf-16"), {"encoding": "utf-16"}, HOURLY),
    ],
)
def test_own_series_is_understood(
    p: Package,
    tmp_path: Path,
    content: str | bytes,
    keys: dict[str, Any],
    expected: str,
) -> None:
    data = p.data
    file = tmp_path / "table.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    cfg = data.DataConfig(**{"kind": "series", "path": file, "window": 8, "horizon": 4, **keys})
    train, val, spec = data.load(cfg)
    assert expected in "\n".join(data.describe(train, val, spec))
    assert train.tensors[0].isfinite().all()
    again = data.load(cfg, data.Spec(**asdict(spec)))
    assert again[2] == spec
    assert torch.equal(again[1].tensors[0], val.tensors[0])


@pytest.mark.parametrize(
    ("content", "keys", "expected"),
    [
        (
            csv_of(once("unknown")),
            {},
            "column load: 'unknown' in row 7 is not a number: correct it",
        ),
        (csv_of(once("n.a.")), {}, "column load: 'n.a.' in row 7 is not a number: correct it"),
        (
            csv_of(lambda row: f'"{row % 7},5"'),
            {},
            "column load: '0,5' in row 2 can be 05 or 0.5: rewrite the numbers, set data.decimal",
        ),
        (
            csv_of(lambda row: row + 200 if row % 2 else f"{row % 7 + 1}.125"),
            {"columns": ("load",)},
            "column load: '1.125' in row 2 can be 1125 or 1.125: remove separators",
        ),
        (
            csv_of(lambda row: f"${row % 7}.5"),
            {},
            "column load: '$0.5' in row 2 is not a number: cor",
        ),
        (
            csv_of(lambda row: f"{row % 7} kW"),
            {},
            "column load: '0 kW' in row 2 is not a number: cor",
        ),
        (csv_of(once("1e39")), {}, "column load: 1e+39 in row 7 is too large: correct it"),
        (csv_of(once("inf")), {}, "column load: inf in row 7 is not finite: correct it"),
        (
            csv_of(lambda row: 5),
            {},
            "load: the values are the same in each training row, so ther",
        ),
        (
            csv_of(lambda row: ""),
            {},
            "has no column of numbers other than one that counts the rows",
        ),
        (csv_of(lambda row: ""), {"columns": ("load",)}, "column load has no value: choose other"),
        (csv_of(), {"columns": ("wind",)}, "has no column 'wind'; it has when, load, note"),
        (
            csv_of(),
            {"columns": ("note",)},
            "column note: 'dry' in row 2 is not a number: correct it",
        ),
        (
            csv_of(date=lambda row: DATES[99 - row]),
            {},
            "in row 3 is not after the date of the row above",
        ),
        (
            csv_of(date=lambda row: DATES[7 if row == 5 else row]),
            {},
            "in row 8 is not after the date of",
        ),
        (
            csv_of(date=lambda row: DATES[4 if row == 5 else row]),
            {},
            "in row 7 is not after the date of",
        ),
        (
            csv_of(date=lambda row: "" if row == 5 else DATES[row]),
            {},
            "there is no date in row 7: add",
        ),
        (
            csv_of(date=lambda row: "soon" if row == 5 else DATES[row]),
            {},
            "there is no date in row 7",
        ),
        (
            csv_of(date=lambda row: f"{DATES[-row]:%d %b %Y %H:%M}"),
            {},
            "in row 4 is not after the d",
        ),
        (
            csv_of(date=lambda row: 2000 - row),
            {},
            "column when: 1999 in row 3 is not after the value of the row above",
        ),
        (
            csv_of(date=lambda row: row if row != 5 else 4),
            {},
            "column when: 4 in row 7 is not after the value of the row above, as if times",
        ),
        (
            "2024-01-01,0.5\n2024-01-02,1.5\n",
            {},
            "the first row of FILE has values (2024-01-01, 0.5)",
        ),
        (csv_of(header="when,load,load"), {}, "has several columns 'load': rename or remove them"),
        (
            csv_of(rows=12),
            {},
            "the training split has 10 rows, but a window has 12 (data.window + d",
        ),
        (csv_of(rows=20), {"val_fraction": 0.05}, "the validation split has 9 rows, but a window"),
        (csv_of(rows=0), {}, "has no rows below the names of the columns"),
        (
            csv_of(lambda row: 20240131 - row % 31 - row // 31 * 100, lambda row: row % 7, rows=31),
            {},
            "column load: 2024-01-30 00:00:00 in row 3 is not after the date of the row above",
        ),
        *(
            (falling(form), {}, " in row 3 is not after the date of the row")
            for form in OTHER_FORMS
        ),
        (falling("%G-W%V"), {}, "falls from '2024-W20' to '2024-W01', as if the newest row were"),
        ("", {}, "FILE (it is empty)"),
        ("a,b\n1,2\n3,4,5,6\n", {}, "FILE (Expected 2 fields in line 3, saw 4): let the first l"),
        (
            "a,b\n1,5,2,5\n1,5,2,5\n",
            {},
            "row 2 of FILE has more cells than the header has names: l",
        ),
        (
            ",load\n" + "".join(f"2024-01-{31 - day:02},{day % 5}\n" for day in range(31)),
            {},
            "column index: 2024-01-30 00:00:00 in row 3 is not after the date of the row above",
        ),
        ("a;b,c\n1;2,x\n", {}, "have no clear separator: set data.separator"),
        ("größe\n1\n".encode("latin-1"), {}, "FILE is not utf-8 at byte 2: set data.encoding"),
        (
            csv_of(),
            {"path": Path("")},
            "data.path is empty, or the current folder: give a file (.csv",
        ),
        (
            csv_of(),
            {"path": Path("~/none.csv")},
            f"data.path={Path.home()}/none.csv does not exist",
        ),
        (
            csv_of(),
            {"path": Path(__file__).parent},
            "is no table: give a file (.csv, .tsv, .txt, .p",
        ),
        (csv_of(), {"val_fraction": 0.5, "test_fraction": 0.5}, "it leaves nothing for training"),
    ],
)
def test_unusable_series_is_one_line(
    p: Package,
    tmp_path: Path,
    content: str | bytes,
    keys: dict[str, Any],
    expected: str,
) -> None:
    data = p.data
    error = p.errors.UserError
    file = tmp_path / "table.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(error) as caught:
        data.load(
            data.DataConfig(**{"kind": "series", "path": file, "window": 8, "horizon": 4, **keys})
        )
    assert expected in str(caught.value).replace(str(file), "FILE")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "frequency"),
    [
        ("%m/%d/%y", "D"),
        ("%d-%b-%y", "D"),
        ("%Y%m%d", "D"),
        ('"%B %d, %Y"', "D"),
        ("%m/%d/%Y %I:%M:%S %p", "D"),
        ("%d/%m/%Y", "MS"),
        ("%d/%m/%y", "MS"),
        ("%b-%y", "MS"),
        ("%b %Y", "MS"),
    ],
)
def test_dates_of_any_form_have_to_rise(
    p: Package, tmp_path: Path, form: str, frequency: str
) -> None:
    days = pd.date_range("1963-01-01", periods=100, freq=frequency)
    file = tmp_path / "table.csv"
    cfg = p.data.DataConfig(kind="series", path=file, window=8, horizon=4)
    file.write_text(csv_of(date=lambda row: days[row].strftime(form)))
    step = "step 1 days" if frequency == "D" else "step 28 days to 31 days"
    said = "\n".join(p.data.describe(*p.data.load(cfg)))
    assert "training: 1963-01-01 00:00:00 to" in said
    assert step in said
    file.write_text(csv_of(date=lambda row: days[-1 - row].strftime(form)))
    with pytest.raises(p.errors.UserError, match="column when: .* in row 3 is not after the date"):
        p.data.load(cfg)


def test_a_first_column_with_equal_steps_counts_the_rows(p: Package, tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv")
    cfg = p.data.DataConfig(kind="series", path=file, window=8, horizon=4)
    file.write_text(csv_of(date=lambda row: row / 4))
    assert p.data.load(cfg)[2].columns == ("load",)
    file.write_text(csv_of(date=lambda row: (row / 4) ** 2))
    assert p.data.load(cfg)[2].columns == ("when", "load")
    file.write_text(csv_of(once(-999)))
    lines = p.data.describe(*p.data.load(cfg))
    assert lines[-1] == "empty these cells if they stand for missing values: -999 in load"


@pytest.mark.parametrize("content", ["größer " * 99, "text\0" * 99])
def test_text_is_in_the_encoding(p: Package, tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(p.errors.UserError, match="(byte 2|binary): set .* or remove"):
        p.data.load(p.data.DataConfig(path=file))
    if "\0" not in content:
        cfg = p.data.DataConfig(path=file, encoding="latin-1", context=8, val_fraction=0.2)
        train, _, _ = p.data.load(cfg)
        assert bytes(train.tensors[0][0].tolist()).decode() == "größer "


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pd.DataFrame({"load": np.arange(200.0) % 7}, index=DATES), "2024-01-01 00:00:00 to"),
        (
            pd.DataFrame({"load": np.arange(200.0) % 7}, index=DATES[::-1]),
            "is not after the date of",
        ),
        (pd.DataFrame({"t": DATES, "load": map(Decimal, range(200))}), "step 01:00:00; windows: 8"),
        (pd.DataFrame({"on": [True, False] * 100, "load": range(200)}), "load; left out: on"),
        (None, "cannot read the table"),
    ],
)
def test_parquet_has_dates_as_an_index_or_a_column(
    p: Package, tmp_path: Path, frame: pd.DataFrame | None, expected: str
) -> None:
    data = p.data
    error = p.errors.UserError
    file = tmp_path / "table.parquet"
    file.write_bytes(b"PAR1 nonsense")
    if frame is not None:
        frame.to_parquet(file)
    cfg = data.DataConfig(
        kind="series",
        path=file,
        window=8,
        horizon=4,
    )
    try:
        said = "\n".join(data.describe(*data.load(cfg)))
    except error as raised:
        said = str(raised)
    assert expected in said


def test_a_run_that_is_resumed_keeps_its_columns_and_statistics(p: Package, tmp_path: Path) -> None:
    data = p.data
    error = p.errors.UserError
    file = write(tmp_path / "a.csv")
    cfg = data.DataConfig(
        kind="series",
        path=file,
        window=8,
        horizon=4,
        test_fraction=0.2,
    )
    cfg = replace(cfg, columns=("load", "price"))
    spec = data.load(cfg)[2]
    write(
        file,
        rows=300,
        wind=np.sin(range(300)),
    )
    train, _, same = data.load(cfg, spec)
    assert same is spec
    assert train.tensors[0].shape[2] == 2
    assert data.load_test(cfg, spec).tensors[0].shape[2] == 2
    assert train.tensors[0].mean() > 0.1
    file.write_text("load,note\n" + "1,x\n2,y\n" * 100)
    with pytest.raises(error, match="has no column 'price'; it has load, note"):
        data.load(cfg, spec)
