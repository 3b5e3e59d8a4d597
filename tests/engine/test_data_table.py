"""Tables: the built-in ones against scikit-learn, and the contents of your own files."""

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
from sklearn import datasets

MODEL = "mlp"

ROWS = 60
LABELS = ["x", "y"] * (ROWS // 2)


def load(
    p: Any,
    folder: Path,
    content: dict[str, Any],
    suffix: str = ".csv",
    **keys: Any,
) -> Any:
    """Write a table with these columns, a label and an id, which is ignored, and load it."""
    file = folder / f"table{suffix}"
    frame = pd.DataFrame(
        {
            "id": range(ROWS),
            "label": LABELS,
            **content,
        }
    )
    if suffix == ".parquet":
        frame.to_parquet(file)
    else:
        frame.to_csv(
            file,
            index=False,
            sep=";" if keys.get("decimal") == "comma" else ",",
        )
    return p.data.load(
        p.data.DataConfig(
            path=file,
            target="label",
            ignore=("id",),
            **keys,
        )
    )


def original(spec: Any, numbers: torch.Tensor) -> Any:
    """Return numbers in the units of their columns."""
    return numbers.double().numpy() * np.array(spec.std) + np.array(spec.mean)


def assert_same_rows(rows: Any, expected: Any) -> None:
    """Compare rows that are in another order."""
    weights = np.random.default_rng(0).random(rows.shape[1])
    order = (rows @ weights).argsort()
    known = (expected @ weights).argsort()
    np.testing.assert_allclose(
        rows[order],
        expected[known],
        rtol=1e-4,
        atol=1e-4,
    )


def joined(splits: Any) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(splits[0].tensors, splits[1].tensors, strict=True)]


def test_breast_cancer_is_that_of_scikit_learn(p: Package) -> None:
    known = datasets.load_breast_cancer()
    train, val, spec = p.data.load(p.data.DataConfig())
    assert (len(train), len(val), len(spec.numeric), spec.categories) == (456, 113, 30, ())
    assert_same_rows(original(spec, joined((train, val))[0]), known.data)
    assert val.tensors[2].double().mean().item() == pytest.approx(known.target.mean(), abs=0.01), (
        "stratified"
    )
    assert train.tensors[0].mean(0).abs().max() < 1e-5
    assert train.tensors[0].std(0, correction=0).numpy() == pytest.approx(np.ones(30), abs=1e-5)


def test_header_of_any_length_is_read_whole(p: Package, tmp_path: Path) -> None:
    """Tables of genes have tens of thousands of columns: this header has 120,000 characters."""
    values = np.random.default_rng(0).random((300, ROWS)).round(3)
    genes = {f"gene_{number:0395}": column for number, column in enumerate(values)}
    _, _, spec = load(p, tmp_path, genes)
    assert list(spec.numeric) == list(genes)


def test_diabetes_is_that_of_scikit_learn(p: Package) -> None:
    known = datasets.load_diabetes(scaled=False)
    train, val, spec = p.data.load(p.data.DataConfig(builtin="diabetes"))
    numbers, codes, targets = joined((train, val))
    assert_same_rows(
        np.insert(
            original(spec, numbers),
            1,
            codes[:, 0],
            axis=1,
        ),
        known.data,
    )
    in_its_unit = targets.double() * spec.target_std + spec.target_mean
    assert sorted(in_its_unit.tolist()) == pytest.approx(sorted(known.target), rel=1e-5)


def test_large_targets_keep_their_differences(p: Package, tmp_path: Path) -> None:
    """In float32, 2e9 and 2e9 + 1 are equal."""
    train, _, spec = load(
        p, tmp_path, {"a": range(ROWS), "label": np.arange(ROWS) + 2e9}, task="regression"
    )
    in_its_unit = train.tensors[2].double() * spec.target_std + spec.target_mean - 2e9
    assert len(set(in_its_unit.round().tolist())) == len(train)


COMMAS = ["1,234", "2,500", "12"]
POINTS = ["1.234", "2.500", "12"]
THOUSANDS = ["1.234,5", "0,5", "12"]
UNCLEAR = ["1.234", "-2.500", "998", "3.750", "170", "500"]
OF_COMMAS = [cell.replace(".", ",") for cell in UNCLEAR]


@pytest.mark.parametrize(
    ("cells", "decimal", "expected"),
    [
        (COMMAS, "point", "column a: '1,234' in row 2 can be 1234 or 1.234: "),
        (COMMAS, "comma", [1.234, 2.5, 12]),
        (POINTS, "point", [1.234, 2.5, 12]),
        (POINTS, "comma", "column a: '1.234' in row 2 has separators between thousands: "),
        (UNCLEAR, "point", "column a: '1.234' in row 2 can be 1234 or 1.234: remove separators"),
        (UNCLEAR, "comma", "column a: '1.234' in row 2 has separators between thousands: remove"),
        (OF_COMMAS, "comma", [-2.5, 1.234, 3.75, 170, 500, 998]),
        (["1.234", "2.500", "0", "3.750", "-1", "999"], "point", [-1, 0, 1.234, 2.5, 3.75, 999]),
        (["1.234", "2.500", "3.750", "2", "3", "4"], "point", [1.234, 2, 2.5, 3, 3.75, 4]),
        (["1.234", "2.500", "0.999", "3.750", "9"], "point", [0.999, 1.234, 2.5, 3.75, 9]),
        (["1.234", "2.500", "1000", "3.750", "9"], "point", [1.234, 2.5, 3.75, 9, 1000]),
        (["1.234", "2.500", "3.750"], "point", [1.234, 2.5, 3.75]),
        (THOUSANDS, "point", "column a: '1.234,5' in row 2 can be 1.2345 or 1234.5: "),
        (THOUSANDS, "comma", "column a: '1.234,5' in row 2 has separators between thousands: rem"),
    ],
)
def test_separators_in_numbers_need_the_option(
    p: Package, tmp_path: Path, cells: list[str], decimal: str, expected: Any
) -> None:
    content = {"a": (cells * ROWS)[:ROWS]}
    if isinstance(expected, str):
        with pytest.raises(p.errors.UserError, match=expected):
            load(p, tmp_path, content, decimal=decimal)
        spec = load(p, tmp_path, content, decimal=decimal, categorical=("a",))[2]
        assert spec.categories == (tuple(sorted(cells)),)
        return
    splits = load(p, tmp_path, content, decimal=decimal)
    numbers = original(splits[2], joined(splits)[0]).round(5)
    assert sorted({*numbers.flatten()}) == pytest.approx(sorted(expected), rel=1e-4)


def test_a_target_of_unclear_numbers_is_refused(p: Package, tmp_path: Path) -> None:
    target = ["1.234"] * (ROWS - 5) + UNCLEAR[1:]
    content = {"a": range(ROWS), "label": target}
    for task in ("auto", "regression"):
        with pytest.raises(p.errors.UserError, match="column label: '1.234' in row 2 can be 1234"):
            load(p, tmp_path, content, task=task)


def test_a_later_row_may_show_how_numbers_are_written(p: Package, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "a,target\n" + "1.234,0\n2.500,1\n3.750,0\n500,1\n600,1\n700,0\n" * 2600 + "0.5,1\n"
    )
    spec = p.data.load(p.data.DataConfig(path=file, val_fraction=0.5))[2]
    assert spec.numeric == ("a",)


@pytest.mark.parametrize(
    "cells",
    [
        ["A1,234", "B2,500", "C3"],
        ["1,5", "Rome, Italy", "Paris, France"],
        ["01.02.2024", "03.02.2024", "04.05.2024"],
        ["1.2.3", "1.10.0", "2.0.1"],
        ["10-20", "20-30", "30+"],
        ["1st", "2nd", "3rd"],
        ["5%", "10%", "20 %"],
    ],
)
def test_categories_that_contain_digits_are_categories(
    p: Package, tmp_path: Path, cells: list[str]
) -> None:
    spec = load(p, tmp_path, {"a": cells * (ROWS // 3)})[2]
    assert spec.categories == (tuple(sorted(cells)),)


@pytest.mark.parametrize(
    ("values", "keys", "classes"),
    [
        ([2, 10, 1], {}, ("1", "2", "10")),
        (["2", "10", "b"], {}, ("10", "2", "b")),
        ([True, False, True], {}, ("False", "True")),
        ([2.0, 10.0, 1.0], {}, ("1", "2", "10")),
        ([2, 10, 1], {"task": "regression"}, ()),
        ([0.5, 1.5, 1.0], {}, ()),
    ],
)
def test_classes_are_sorted_by_value_if_all_are_numbers(
    p: Package,
    tmp_path: Path,
    values: list[Any],
    keys: dict[str, Any],
    classes: tuple[str, ...],
) -> None:
    content = {"a": range(ROWS), "label": values * (ROWS // 3)}
    assert load(p, tmp_path, content, ".parquet", **keys)[2].classes == classes


def test_integer_categories_with_missing_values_have_no_point(p: Package, tmp_path: Path) -> None:
    spec = load(p, tmp_path, {"a": [1, 2, None] * (ROWS // 3)}, categorical=("a",))[2]
    assert spec.categories == (("", "1", "2"),)


def test_saved_index_that_may_count_rows_is_ignored(p: Package, tmp_path: Path) -> None:
    """That of rows in another order says where they were, and so perhaps their label."""
    frame = pd.DataFrame({"a": np.arange(ROWS) % 7, "label": LABELS})
    shuffled = frame.sample(frac=1, random_state=0)
    for saved in (frame, shuffled):
        saved.to_csv(tmp_path / "once.csv")
        pd.read_csv(tmp_path / "once.csv").to_csv(tmp_path / "twice.csv")
        saved.to_parquet(tmp_path / "a.parquet")
        for name in ("once.csv", "twice.csv", "a.parquet"):
            cfg = p.data.DataConfig(path=tmp_path / name, target="label")
            assert p.data.load(cfg)[2].numeric == ("a",)


def test_column_without_a_value_for_validation_is_named(p: Package, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "b.csv").write_text(csv_of(lambda row: ""))
    cfg = p.data.DataConfig(
        path=tmp_path / "a.csv",
        val_path=tmp_path / "b.csv",
        target="label",
        ignore=("id",),
    )
    with pytest.raises(p.errors.UserError, match="column 'a' is empty in data.val_path, but not"):
        p.data.load(cfg)
    (tmp_path / "a.csv").write_text(csv_of(lambda row: row if row % 3 == 0 else ""))
    p.data.load(cfg)


def test_codes_in_late_rows_are_categories(p: Package, tmp_path: Path) -> None:
    codes = [str(1000 + row % 3) for row in range(10_500)]
    codes += [f"0{100 + row % 3}" for row in range(60)]
    numbers = [row % 7 for row in range(len(codes))]
    labels = ["xy"[row % 2] for row in range(len(codes))]
    file = tmp_path / "a.csv"
    frame = pd.DataFrame(
        {
            "zip": codes,
            "a": numbers,
            "label": labels,
        }
    )
    for columns in (["zip", "a", "label"], ["a", "zip", "label"], ["a", "label", "zip"]):
        frame[columns].to_csv(file, index=False)
        spec = p.data.load(p.data.DataConfig(path=file, target="label"))[2]
        assert spec.categorical == ("zip",)


def test_saved_index_of_words_is_a_column_of_parquet(p: Package, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": range(ROWS), "label": LABELS},
        index=["u", "v", "w"] * (ROWS // 3),
    )
    frame.to_csv(tmp_path / "a.csv")  # where it has no name
    frame.to_parquet(tmp_path / "a.parquet")
    for name, expected in {"a.csv": (), "a.parquet": ("index",)}.items():
        cfg = p.data.DataConfig(path=tmp_path / name, target="label")
        assert p.data.load(cfg)[2].categorical == expected


@pytest.mark.parametrize(
    "column",
    [
        {"a": [1.0] * ROWS},
        {"a": [None] * ROWS},
        {"a": ["same"] * ROWS},
    ],
)
def test_constant_column_does_not_make_inputs_nonfinite(
    p: Package, tmp_path: Path, column: dict[str, Any]
) -> None:
    train, _, spec = load(
        p,
        tmp_path,
        {"b": range(ROWS), **column},
    )
    prepared = p.data.Prepare(spec, p.data.DataConfig())(
        train.__getitems__([0, 1, 2]), True, torch.Generator()
    )
    assert prepared[0].isfinite().all()


def test_a_class_of_one_row_is_no_error(p: Package, tmp_path: Path) -> None:
    labels = ["rare", *LABELS[1:]]
    train, val, spec = load(
        p,
        tmp_path,
        {"a": range(ROWS), "label": labels},
    )
    assert (len(train) + len(val), spec.classes) == (ROWS, ("rare", "x", "y"))


def csv_of(
    cell: Callable[[int], Any],
    label: Callable[[int], Any] = lambda row: "xy"[row % 2],
    header: str = "a,c,label",
    rows: int = ROWS,
) -> str:
    """Return a table with these cells and labels, a column of three categories, and an id."""
    lines = [f"{cell(row)},{'uvw'[row % 3]},{label(row)},{row}" for row in range(rows)]
    return "\n".join([f"{header},id", *lines, ""])


def once(odd: Any, row: int = 5) -> Callable[[int], Any]:
    """Return cells that count, but for one, by default in row 7 of the file."""
    return lambda number: odd if number == row else number


GOOD = csv_of(once(5))


@pytest.mark.parametrize(
    ("content", "keys", "expected"),
    [
        (csv_of(once("")), {}, "2 columns: 1 numbers, 1 categories"),
        (csv_of(once("   ")), {}, "2 columns: 1 numbers, 1 categories"),
        (csv_of(once("?")), {}, "2 columns: 1 numbers, 1 categories"),
        (csv_of("\N{MINUS SIGN}{}".format), {}, "2 columns: 1 numbers, 1 categories"),
        (csv_of(lambda row: 1.7e9 + row), {}, "2 columns: 1 numbers, 1 categories"),
        (csv_of(lambda row: 10**25 + row * 10**20), {}, "2 columns: 1 numbers, 1 categories"),
        (
            csv_of(lambda row: ""),
            {},
            "2 columns: 0 numbers, 1 categories (c), 1 left out (empty: a), 1 ignored (id)",
        ),
        (csv_of(once(5), lambda row: [" x", "x ", "y", " y"][row % 4]), {}, "2 classes: x "),
        (csv_of(once(5), header=" a , c , label "), {}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.replace("a,c", "a,Unnamed: 0"), {}, "1 numbers, 1 categories (Unnamed: 0)"),
        (csv_of(once("5\u00a0")), {}, "2 columns: 1 numbers, 1 categories"),
        (csv_of(once(5)), {"ignore": ("id", "a")}, "1 columns: 0 numbers, 1 categories"),
        (csv_of(once("unknown")), {"ignore": ("id", "a")}, "1 columns: 0 numbers, 1 categories"),
        (csv_of(lambda row: row % 4), {"categorical": ("a",)}, "2 columns: 0 numbers, 2 categ"),
        (csv_of(lambda row: f"0{row % 4}7"), {}, "2 columns: 0 numbers, 2 categories (a, c)"),
        (csv_of(lambda row: 1000 + row % 4, "0{}".format), {"task": "regression"}, "has the mean"),
        (csv_of(once(5), lambda row: f"00{row // 4 % 3}"), {}, "3 classes: 000 ("),
        (csv_of(lambda row: f"0{row % 4}7 " if row else ""), {}, "2 columns: 0 numbers, 2 categ"),
        (csv_of(lambda row: row / 4 if row else "00"), {}, "2 columns: 1 numbers, 1 categories"),
        (csv_of(lambda row: f"0.{row}"), {}, "2 columns: 1 numbers, 1 categories (c)"),
        (csv_of(once(-999)), {}, "if they stand for missing values: -999 in a"),
        (csv_of(lambda row: 9999 if row % 4 else row / 9), {}, "missing values: 9999 in a"),
        (GOOD.replace("\n", ",\n"), {}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.replace("\n", ",,\n").replace("id,,", "id"), {}, "2 columns: 1 numbers, 1 categor"),
        (GOOD.replace("\n", "\r"), {}, "2 columns: 1 numbers, 1 categories"),
        (
            csv_of(once(5), lambda row: "rare" if row == 7 else "xy"[row % 2]),
            {},
            "has these classes: rare",
        ),
        (GOOD.replace("\n", ",\n").replace("id,", "id"), {}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.replace(",", ";"), {}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.replace(",", "\t"), {}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.replace(",", "|"), {}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.replace("a,c", "a;b,c"), {"separator": "comma"}, "2 columns: 1 numbers, 1 categ"),
        (GOOD.replace("a,c", '"a;b",c'), {}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.replace("a,c", "a;b,c"), {}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.encode("utf-16"), {"encoding": "utf-16"}, "2 columns: 1 numbers, 1 categories"),
        (GOOD.encode("utf-8-sig"), {}, "2 columns: 1 numbers, 1 categories"),
        (csv_of(once(9), lambda row: row / 7), {}, "regression: the target has the mean"),
        (csv_of(lambda row: row / 7, lambda row: 5 - row / 9), {}, "follows from a alone: if that"),
        (csv_of(lambda row: f"class {row % 2}"), {}, "the target follows from a alone: if that is"),
        (GOOD, {"ignore": ()}, "rise from each row to the next: if they count rows, ignore them: "),
        (GOOD.replace("a,c,label", "1,2,label"), {}, "2 columns: 1 numbers, 1 categories"),
        (
            GOOD.replace("a,c,label,id", "1,20,300,4000"),
            {"target": "300", "ignore": ("4000",)},
            "x (2",
        ),
    ],
)
def test_own_file_is_understood(
    p: Package,
    tmp_path: Path,
    content: str | bytes,
    keys: dict[str, Any],
    expected: str,
) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    cfg = p.data.DataConfig(
        path=file,
        **{"target": "label", "ignore": ("id",), **keys},
    )
    train, val, spec = p.data.load(cfg)
    said = "\n".join(p.data.describe(train, val, spec))
    assert expected in said
    assert ("follows from" in said) == ("follows from" in expected)
    assert train.tensors[0].isfinite().all()
    assert (train.tensors[0].mean(0).abs() < 1e-4).all()
    again = p.data.load(cfg, p.data.Spec(**asdict(spec)))
    assert again[2] == spec
    assert all(
        map(
            torch.equal,
            joined(again),
            joined((train, val)),
        )
    )


@pytest.mark.parametrize(
    ("cell", "replaced", "expected"),
    [
        (lambda row: row % 9, "", "ROWS of ROWS rows for validation are equal to one for training"),
        (
            lambda row: 1000 + row,
            "",
            "have no value for validation in the range of the training: a",
        ),
        (
            lambda row: row % 9,
            "z",
            "have mostly categories for validation that fewer than 3 rows for training have: c",
        ),
        (lambda row: row % 9 + 0.5, "", ""),
    ],
)
def test_validation_file_that_does_not_fit_the_training_is_named(
    p: Package,
    tmp_path: Path,
    cell: Callable[[int], Any],
    replaced: str,
    expected: str,
) -> None:
    path = tmp_path / "train.csv"
    path.write_text(csv_of(lambda row: row % 9))
    val_path = tmp_path / "val.csv"
    content = csv_of(cell)
    for category in "uvw":
        content = content.replace(f",{category},", f",{replaced or category},")
    val_path.write_text(content)
    cfg = p.data.DataConfig(path=path, val_path=val_path, target="label", ignore=("id",))
    _, *lines = p.data.describe(*p.data.load(cfg))
    assert "; ".join(lines[1:]).removeprefix("these columns ") == expected.replace(
        "ROWS", str(ROWS)
    )


@pytest.mark.parametrize(
    ("content", "keys", "message"),
    [
        (csv_of(once("unknown")), {}, "column a: 'unknown' in row 7 is not a number: correct it"),
        (csv_of(once("-")), {}, "column a: '-' in row 7 is not a number: correct it"),
        (csv_of(once("n.a.")), {}, "column a: 'n.a.' in row 7 is not a number: correct it"),
        (
            csv_of(lambda row: f'"$1,2{row:02}.5"'),
            {},
            "column a: '$1,200.5' in row 2 is not a numb",
        ),
        (csv_of(lambda row: f"{row}%"), {}, "column a: '0%' in row 2 is not a number"),
        (csv_of(lambda row: f"1 2{row % 3:02}"), {}, "column a: '1 200' in row 2 has separators"),
        (csv_of(lambda row: f"1'2{row:02}"), {}, """column a: "1'200" in row 2 has separators"""),
        (csv_of(lambda row: f"1\u202f2{row:02}"), {}, "in row 2 has separators between thousands"),
        (
            csv_of(once(5), lambda row: f"1 20{row % 4}"),
            {},
            "column label: '1 200' in row 2 has sep",
        ),
        (csv_of(lambda row: "-" if row % 2 else row), {}, "column a: '-' in row 3 is not a number"),
        (csv_of(lambda row: f"{row},5"), {}, "row 2 of FILE has more cells than the header has"),
        (
            "# of January\n" + GOOD,
            {},
            "row 2 of FILE has more cells than the header has names: let ",
        ),
        (
            "sep=;\n" + GOOD.replace(",", ";"),
            {},
            ": let the first line be the names of all columns",
        ),
        ("# m, s\n" + GOOD, {}, "let the first line be the names of all columns"),
        (
            csv_of(once("1,5", 40)),
            {},
            "Expected 4 fields in line 42, saw 5): let the first line be",
        ),
        (
            csv_of(once("1,5")).replace("\n", ",\n").replace("1,5,w,y,5,", "1,5,w,y,5"),
            {},
            "row 7 of FILE has more cells than the header has names: let the first line",
        ),
        (csv_of(lambda row: f"{row} kg"), {}, "column a: '0 kg' in row 2 is not a number"),
        (csv_of(lambda row: f"-${row}"), {}, "column a: '-$0' in row 2 is not a number"),
        (csv_of(lambda row: f"EUR {row}"), {}, "column a: 'EUR 0' in row 2 is not a number"),
        (csv_of(lambda row: f"{row}.5\N{DEGREE SIGN}C"), {}, "' in row 2 is not a number: correct"),
        (csv_of(lambda row: f"{row} km/h"), {}, "column a: '0 km/h' in row 2 is not a number"),
        (csv_of(lambda row: ["1", "2", "3a"][row % 3]), {}, "column a: '3a' in row 4 is not a num"),
        (csv_of(lambda row: f"{row % 5}\N{ARABIC-INDIC DIGIT TWO}x{row}"), {}, "it is no category"),
        (
            GOOD.replace("a,c,label,id", "3,2024-01-01,5.5,7"),
            {},
            "the first row of FILE has values (3, 2024-01-01, 5.5, 7): add a row with the names of "
            "the columns above it or, if these are the names, begin them with a letter",
        ),
        (GOOD.replace("u,x", "\0,x"), {}, "FILE is binary: set data.encoding, or remove"),
        (GOOD, {"path": Path("~nobody-here/a.csv")}, "data.path=~nobody-here/a.csv does not ex"),
        (csv_of(once("1e39")), {}, "column a: 1e+39 in row 7 is too large: correct it"),
        (csv_of(once("-inf")), {}, "column a: -inf in row 7 is not finite: correct it"),
        (csv_of(lambda row: f"note {row}"), {}, "is in fewer than 3 rows, so it is no category"),
        (csv_of(lambda row: f"2024-01-01 10:{row}"), {}, "so it is no category: add the column to"),
        (
            csv_of(once(5)),
            {"categorical": ("a",)},
            "so it is no category: add the column to data.ig",
        ),
        (csv_of(once(5), header="label,c,label"), {}, "has several columns 'label': rename or"),
        (csv_of(once(5), header="a,a ,label"), {}, "has several columns 'a': rename or remove"),
        (GOOD, {"target": "lable"}, "has no column 'lable' (data.target); it has a, c, label, id"),
        (GOOD, {"ignore": ("ids",)}, "has no column 'ids' (data.ignore); it has a, c, label, id"),
        (GOOD, {"ignore": ("label",)}, "data.ignore has the target 'label': remove it there"),
        (GOOD, {"categorical": ("label",)}, "data.categorical has the target 'label'"),
        (
            GOOD,
            {"ignore": ("id", "a", "c")},
            "there is no column from which to predict label: see data",
        ),
        (csv_of(once(5), lambda row: ""), {}, "the target label has no value in row 2: add it, r"),
        (csv_of(once(5), once("")), {}, "the target label has no value in row 7: add it, remove t"),
        (csv_of(once(5), lambda row: "x"), {}, "the target label is x in each row for training ("),
        (csv_of(once(5), lambda row: f"id{row}"), {}, "has classes of one row each, such as 'id0'"),
        (csv_of(once(5), lambda row: f"${row}"), {}, "column label: '$0' in row 2 is not a number"),
        (GOOD, {"task": "regression"}, "column label: 'x' in row 2 is not a number: correct it"),
        (csv_of(once(5), rows=1), {}, "none of the 1 rows is for "),
        (
            "a,label\n" + "1,x\n" * 9,
            {"ignore": ()},
            "none of the 9 rows is for validation, and equal rows are",
        ),
        ("a,label\n1,.5\n2,1.5\n3,2.5\n", {"ignore": ()}, "in each row for validation (1 rows)"),
        ("a,label\n" + "1,x\n2,y\n" * 9, {"ignore": ()}, " in each row for training (9 rows)"),
        ("a,label\n", {"ignore": ()}, "has no rows below the names of the columns"),
        ("\n\n", {}, "FILE (it is empty)"),
        (
            "a,label\n1,5,x\n2,5,y\n",
            {"ignore": ()},
            "row 2 of FILE has more cells than the header has names: let the first line",
        ),
        (csv_of(once("")).rsplit(",", 1)[0], {}, "FILE has fewer cells than the header has names"),
        (
            "a,b,label\n1,,x\n2,3\n4,5,y\n",
            {"ignore": ()},
            "row 3 of FILE has fewer cells than the header has names: add the missing cells",
        ),
        ("a,label\n1,x\n1,x,y\n", {}, "FILE (Expected 2 fields in line 3, saw 3): let the first l"),
        ("a;b,label\n1;2,x\n", {}, "have no clear separator: set data.separator"),
        (
            "größe,label\n1,x\n".encode("latin-1"),
            {},
            "FILE is not utf-8 at byte 2: set data.en",
        ),
        (GOOD, {"encoding": "klingon"}, "data.encoding=klingon is none of Python's: give utf-8"),
        (GOOD, {"path": Path("~/none.csv")}, f"data.path={Path.home()}/none.csv does not exist"),
        (GOOD, {"path": Path("")}, "data.path is empty, or the current folder: give a file (.csv"),
        (GOOD, {"path": Path(__file__).parent}, " is no table: give a file (.csv, .tsv, .txt, .p"),
        (GOOD, {"path": Path(__file__)}, "test_data_table.py is no table: give a file (.csv, .ts"),
        (GOOD, {"path": None}, "built-in table breast_cancer has no column 'label' (data.target)"),
        (GOOD, {"val_fraction": 0.5, "test_fraction": 0.5}, "it leaves no rows for training"),
    ],
)
def test_unusable_file_is_one_line(
    p: Package,
    tmp_path: Path,
    content: str | bytes,
    keys: dict[str, Any],
    message: str,
) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(p.errors.UserError) as caught:
        p.data.load(
            p.data.DataConfig(**{"path": file, "target": "label", "ignore": ("id",), **keys})
        )
    assert message in str(caught.value).replace(str(file), "FILE")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([Decimal(row) / 4 for row in range(ROWS)], "1 columns: 1 numbers"),
        (pd.array([None, *range(1, ROWS)], dtype="Int64"), "1 columns: 1 numbers"),
        ([str(row // 3) for row in range(ROWS)], "1 columns: 0 numbers, 1 categories"),
        ([[True, False, None][row % 3] for row in range(ROWS)], "1 columns: 0 numbers, 1 categ"),
        ([[row] for row in range(ROWS)], "column a: [0] in row 1 is neither a number nor text"),
        ([{"b": row} for row in range(ROWS)], "column a: {'b': 0} in row 1 is neither a number"),
        ([b"x"] * ROWS, "column a: b'x' in row 1 is neither a number nor text"),
        ([str(row) for row in range(ROWS)], "so it is no category: add the column to data.ignore"),
        (pd.date_range("2024-01-01", periods=ROWS), "'2024-01-01' in row 1, like most values, is"),
        (b"PAR1 nonsense", "cannot read the table"),
    ],
)
def test_parquet_says_the_kind_of_a_column(
    p: Package, tmp_path: Path, column: Any, expected: str
) -> None:
    try:
        if isinstance(column, bytes):
            (tmp_path / "table.parquet").write_bytes(column)
            p.data.load(p.data.DataConfig(path=tmp_path / "table.parquet"))
        said = "\n".join(
            p.data.describe(
                *load(
                    p,
                    tmp_path,
                    {"a": column},
                    ".parquet",
                )
            )
        )
    except p.errors.UserError as error:
        said = str(error)
    assert expected in said


@pytest.mark.parametrize(
    ("content", "keys", "message"),
    [
        ("a,label\n1,x\n", {}, "data.KEY has no column 'c', which the training has: add it"),
        ("a,c,d,label\n1,u,3,x\n", {}, "data.KEY has a column 'd', which the training has not"),
        ("a,c,d,label\n1,u,,x\n", {}, ""),
        ("a,c,label\nfoo,u,x\n", {}, "column a: 'foo' in row 2 is not a number: correct it"),
        ("a,c,label\n1e39,u,x\n", {}, "column a: 1e+39 in row 2 is too large"),
        ("a,c,label\n1,u,x\n2,u,z\n", {}, "column label: the class 'z' in row 3 is none of the"),
        ("a,c,label\n1,u,\n2,u,y\n", {}, "the target label has no value in row 2"),
        ("a,c,label\n", {}, "other.csv has no rows below the names of the columns"),
        ("a,c,label\n,7, x \n2,new,y\n", {}, ""),
        ("a;c;label\n1;u;x\n", {}, ""),
    ],
)
@pytest.mark.parametrize("key", ["val_path", "test_path", "path"])
def test_other_file_has_the_columns_and_classes_of_the_training(
    p: Package,
    tmp_path: Path,
    content: str,
    keys: dict[str, Any],
    message: str,
    key: str,
) -> None:
    """Also the file of a run that is resumed, with its spec."""
    data = p.data
    error = p.errors.UserError
    file = tmp_path / "table.csv"
    other = tmp_path / "other.csv"
    file.write_text(GOOD)
    other.write_text(content)
    cfg = data.DataConfig(
        path=file,
        target="label",
        ignore=("id",),
    )
    spec = data.load(cfg)[2]

    def load_other() -> Any:
        changed = replace(cfg, **{key: other})
        if key == "path":
            changed = replace(changed, ignore=(), val_path=other)
        if key == "test_path":
            return data.load_test(changed)
        if key == "path":
            return data.load(changed, spec)
        return data.load(changed)[1]

    if not message:
        assert load_other()
        return
    with pytest.raises(error) as caught:
        load_other()
    assert message.replace("KEY", key) in str(caught.value)


def test_rows_stay_in_their_split(p: Package, tmp_path: Path) -> None:
    """When rows are added, or the options of columns change; equal rows are on one side."""
    data = p.data
    file = tmp_path / "table.csv"
    lines = csv_of(lambda row: row if row % 9 else "", rows=1000).splitlines()

    def splits(rows: list[str], **keys: Any) -> list[set[float]]:
        file.write_text("\n".join([lines[0], *rows]))
        common = {"target": "label", "ignore": ("id",), "test_fraction": 0.3}
        cfg = data.DataConfig(path=file, **{**common, **keys})
        train, val, spec = data.load(cfg)
        return [
            {*original(spec, split.tensors[0])[:, 0].round(2).tolist()}
            for split in (train, val, data.load_test(cfg))
        ]

    def of_whole(split: set[float]) -> set[float]:
        """Leave out the mean of the column, which missing numbers become."""
        return {number for number in split if number == int(number)}

    whole = [*map(of_whole, splits(lines[1:]))]
    assert [len(split) for split in whole] == pytest.approx([444, 178, 267], rel=0.2)
    fewer = splits(lines[1:700])
    for split, all_of_it in zip(fewer, whole, strict=True):
        assert of_whole(split) <= all_of_it
    assert [*map(of_whole, splits(lines[1:], ignore=("id", "c")))] == whole
    doubled = splits(lines[1:] * 2)
    assert not of_whole(doubled[0] & doubled[1])


def test_large_numbers_keep_their_differences(p: Package, tmp_path: Path) -> None:
    """In float32, times in seconds since 1970 are equal."""
    train, _, _ = load(
        p,
        tmp_path,
        {"a": np.arange(ROWS) + 1_700_000_000},
    )
    assert len(train.tensors[0].unique()) == len(train)


@pytest.mark.parametrize(
    ("cell", "ignored"), [(lambda row: row, "[id,c]"), (lambda row: "rst"[row % 3], "[id]")]
)
def test_table_trains_with_numbers_or_categories_alone_but_not_on_one_row_a_batch(
    p: Package, tmp_path: Path, cell: Callable[[int], Any], ignored: str
) -> None:
    table = csv_of(cell, rows=200)
    (tmp_path / "table.csv").write_text(table)
    options = [f"--data.path={tmp_path}/table.csv", "--data.target=label", "--train.steps=2"]
    options += [f"--data.ignore={ignored}"]
    p.train_here(tmp_path, *options, "--train.batch_size=8", "--train.eval_every=2")
    with pytest.raises(p.errors.UserError, match="a batch has 1 row: BatchNorm needs 2"):
        p.train_here(tmp_path / "b", *options, "--train.batch_size=1")


def test_new_rows_are_encoded_as_those_of_the_training(p: Package, tmp_path: Path) -> None:
    """Without a target, with further columns, in another order; a gap is the mean."""
    data = p.data
    spec = load(p, tmp_path, {"a": range(ROWS), "c": ["u", "v"] * 30})[2]
    file = tmp_path / "new.csv"
    file.write_text("c,more,a\nv,1,7\n u ,2,\nnew,3,1e3\n")
    rows = data.read_table(file, data.DataConfig(), "the table")
    numbers, codes = data.encode(rows, spec)
    assert original(spec, numbers)[:, 0] == pytest.approx(
        [
            7,
            spec.mean[0],
            1000,
        ],
        rel=1e-5,
    )
    assert codes[:, 0].tolist() == [2, 1, 0]
